"""Work that is kept and resumed: run folders, their lock, chunks, and engines that run independent work items."""
