message(FATAL_ERROR "This is not fourfold's module")
