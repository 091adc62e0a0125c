# The Metal backend needs only an Objective-C++ compiler: macOS compiles the kernels when they are first used.
# fourfold_find_metal sets FOURFOLD_METAL_MISSING: what is missing and what to change.

# The first macOS whose Metal supports bfloat, and the oldest that torch's current wheels for Apple's processors
# support.
set(FOURFOLD_METAL_MACOS 14.0)

function(fourfold_find_metal wanted)
  set(missing)
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Darwin")
    set(missing "Apple's GPUs are programmed on macOS, and this build is for ${CMAKE_SYSTEM_NAME}")
  elseif(NOT CMAKE_OSX_DEPLOYMENT_TARGET AND CMAKE_HOST_SYSTEM_VERSION VERSION_LESS 23)  # Darwin's number for macOS 14
    set(missing "its kernels need macOS ${FOURFOLD_METAL_MACOS}, and this Mac's is older")
  elseif(CMAKE_OSX_DEPLOYMENT_TARGET AND CMAKE_OSX_DEPLOYMENT_TARGET VERSION_LESS FOURFOLD_METAL_MACOS)
    set(missing "its kernels need macOS ${FOURFOLD_METAL_MACOS}, and this build is for ${CMAKE_OSX_DEPLOYMENT_TARGET} \
and newer: set MACOSX_DEPLOYMENT_TARGET or CMAKE_OSX_DEPLOYMENT_TARGET to ${FOURFOLD_METAL_MACOS}")
  endif()
  set(FOURFOLD_METAL_MISSING "${missing}" PARENT_SCOPE)
endfunction()
