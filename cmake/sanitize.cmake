# FOURFOLD_SANITIZE: what `make sanitize-address` and `make sanitize-thread` build with, in build folders of their own.
# The target fourfold_sanitizer is what instrumented objects are compiled with, and what links them.
add_library(fourfold_sanitizer INTERFACE)
if(FOURFOLD_SANITIZE STREQUAL "address")
  set(_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  # A kernel that is unrolled with all these checks takes GCC minutes.
  set(_optimisation -O1)
elseif(FOURFOLD_SANITIZE STREQUAL "thread")
  set(_flags -fsanitize=thread)
  set(_optimisation)
elseif(FOURFOLD_SANITIZE)
  message(FATAL_ERROR "FOURFOLD_SANITIZE is ${FOURFOLD_SANITIZE}; set it to OFF, address or thread.")
endif()
if(FOURFOLD_SANITIZE)
  # Clang links its runtimes into programs, and Python isn't one that it links.
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    message(FATAL_ERROR "FOURFOLD_SANITIZE=${FOURFOLD_SANITIZE} needs GCC, whose sanitizers are shared libraries, but "
      "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID}. Set the environment variable CXX to g++.")
  endif()
  # -g1: reports name files and lines, and need no more of the debugger's tables.
  target_compile_options(fourfold_sanitizer INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${_flags};${_optimisation};-g1;-fno-omit-frame-pointer>")
  target_link_options(fourfold_sanitizer INTERFACE ${_flags})
endif()
