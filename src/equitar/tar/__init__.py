"""Which samples lie in a tar, and where: from its headers, with every header checked."""
