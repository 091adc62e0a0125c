# The compiler options of the library and of the Python modules.

# clang-cl accepts Clang's options with the prefix /clang:.
function(fourfold_clang_options variable)
  if(CMAKE_CXX_COMPILER_FRONTEND_VARIANT STREQUAL "MSVC")
    list(TRANSFORM ${variable} PREPEND "/clang:")
    set(${variable} "${${variable}}" PARENT_SCOPE)
  endif()
endfunction()

set(common_options -Wall -Wextra -Wno-unused-function -Wno-psabi
  # Registrations contain their file's name; a wheel should not contain paths of the build machine.
  "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" "-ffile-prefix-map=${FOURFOLD_TORCH}/=torch/")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND common_options -fno-canonical-system-headers)  # GCC would resolve the link to torch
endif()
fourfold_clang_options(common_options)

# The platform of a library, which must be equal in a build that uses it.
set(FOURFOLD_SYSTEM "${CMAKE_SYSTEM_NAME} on ${CMAKE_SYSTEM_PROCESSOR}")
if(APPLE)
  string(APPEND FOURFOLD_SYSTEM ", macOS ${CMAKE_OSX_DEPLOYMENT_TARGET} and newer")
endif()
