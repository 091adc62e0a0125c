# FOURFOLD_SANITIZE, for `make sanitize-address` and `make sanitize-thread`, which have their own build folders. The
# target fourfold_sanitizer has the options that compile and link instrumented objects.
add_library(fourfold_sanitizer INTERFACE)
if(FOURFOLD_SANITIZE STREQUAL "address")
  set(_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  # GCC takes minutes for an unrolled kernel with all these checks.
  set(_optimisation -O1)
elseif(FOURFOLD_SANITIZE STREQUAL "thread")
  set(_flags -fsanitize=thread)
  set(_optimisation)
elseif(FOURFOLD_SANITIZE)
  message(FATAL_ERROR "FOURFOLD_SANITIZE is ${FOURFOLD_SANITIZE}; set it to OFF, address or thread.")
endif()
if(FOURFOLD_SANITIZE)
  # Clang links its sanitizer runtimes into programs, so an unsanitized Python would have none.
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    message(FATAL_ERROR "FOURFOLD_SANITIZE=${FOURFOLD_SANITIZE} needs GCC, whose sanitizers are shared libraries, but "
      "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID}. Set the environment variable CXX to g++.")
  endif()
  # -g1 is enough for files and lines in reports.
  target_compile_options(fourfold_sanitizer INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${_flags};${_optimisation};-g1;-fno-omit-frame-pointer>")
  target_link_options(fourfold_sanitizer INTERFACE ${_flags})
endif()
