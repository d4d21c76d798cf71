"""What is emitted when, and by whom: pure functions of arguments, seed and epoch."""
