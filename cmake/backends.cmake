# Decides which backends are built: a backend is a directory with a CMakeLists.txt, and one that is off is not added.
# FOURFOLD_<BACKEND>_REASON stands in the library, so it names no folder of the machine that builds.
include(cuda)
include(hip)

# ON, OFF or AUTO, from what CMake and people write for them.
foreach(_backend IN ITEMS CUDA HIP METAL)
  string(TOUPPER "${FOURFOLD_${_backend}}" _wanted)
  if(_wanted STREQUAL "")
    set(_wanted AUTO)
  elseif(_wanted MATCHES "^(1|TRUE|YES)$")
    set(_wanted ON)
  elseif(_wanted MATCHES "^(0|FALSE|NO)$")
    set(_wanted OFF)
  elseif(NOT _wanted MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "FOURFOLD_${_backend} is ${FOURFOLD_${_backend}}; set it to AUTO, ON or OFF.")
  endif()
  set(_wanted_${_backend} ${_wanted})
endforeach()

if(_wanted_CUDA STREQUAL "ON" AND _wanted_HIP STREQUAL "ON")
  message(FATAL_ERROR "FOURFOLD_CUDA=ON and FOURFOLD_HIP=ON cannot go into one library, because both register their "
    "kernels under torch's dispatch key CUDA. Set one of them to OFF.")
endif()

# Why AUTO leaves a backend out before anything is searched for; empty where the tools decide.
set(_declined_CUDA)
set(_declined_HIP)
set(_declined_METAL)
if(FOURFOLD_TORCH_FLAVOUR STREQUAL "rocm")
  set(_declined_CUDA "torch is a ROCm build")
else()
  set(_declined_HIP "torch is not a ROCm build")
endif()
if(_wanted_HIP STREQUAL "ON")
  set(_declined_CUDA "FOURFOLD_HIP=ON takes torch's dispatch key CUDA")
elseif(_wanted_CUDA STREQUAL "ON")
  set(_declined_HIP "FOURFOLD_CUDA=ON takes torch's dispatch key CUDA")
endif()

# Not in a function: a language can be enabled only outside of one.
macro(_fourfold_enable_CUDA)
  set(CMAKE_CUDA_COMPILER "${FOURFOLD_CUDA_NVCC}")
  set(CMAKE_CUDA_HOST_COMPILER "${FOURFOLD_CUDA_HOST_COMPILER}")
  set(CUDAToolkit_ROOT "${FOURFOLD_CUDA_ROOT}")
  enable_language(CUDA)
  # CMake's own words for lists, which it knows only now.
  if(CMAKE_CUDA_ARCHITECTURES MATCHES "^(native|all|all-major)$")
    string(TOUPPER "${CMAKE_CUDA_ARCHITECTURES}" _words)
    string(REPLACE "-" "_" _words "${_words}")
    if(NOT CMAKE_CUDA_ARCHITECTURES_${_words} MATCHES "^[0-9]")
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=native asks for the GPU of this machine, which has none. Name an "
        "architecture, such as 90.")
    endif()
    fourfold_torch_architectures("${CMAKE_CUDA_ARCHITECTURES_${_words}}" FOURFOLD_CUDA_ARCHITECTURES)
  endif()
  set(FOURFOLD_CUDA_TOOL "     ${FOURFOLD_CUDA_NVCC}")
  set(FOURFOLD_CUDA_REASON
    "CUDA ${FOURFOLD_CUDA_VERSION} for ${FOURFOLD_CUDA_ARCHITECTURES}${FOURFOLD_CUDA_WHOSE}")
endmacro()

macro(_fourfold_enable_HIP)
  list(JOIN FOURFOLD_HIP_ARCHITECTURES "," _names)
  set(FOURFOLD_HIP_TOOL "     ${FOURFOLD_HIP_COMPILER}")
  set(FOURFOLD_HIP_REASON "HIP ${FOURFOLD_HIP_VERSION} for ${_names}")
endmacro()

set(FOURFOLD_BACKENDS_ON)
foreach(_backend IN ITEMS CUDA HIP METAL)
  string(TOLOWER ${_backend} _folder)
  set(_wanted ${_wanted_${_backend}})
  set(FOURFOLD_${_backend}_BUILT FALSE)
  if(_wanted STREQUAL "OFF")
    set(FOURFOLD_${_backend}_REASON "switched off by FOURFOLD_${_backend}=OFF")
  elseif(NOT EXISTS "${PROJECT_SOURCE_DIR}/${_folder}/CMakeLists.txt")
    if(_wanted STREQUAL "ON")
      message(FATAL_ERROR
        "FOURFOLD_${_backend}=ON asks for the ${_folder} backend, but there is no such backend in this source tree. "
        "Set FOURFOLD_${_backend} to AUTO or OFF.")
    endif()
    set(FOURFOLD_${_backend}_REASON "no such backend in this source tree")
  elseif(_wanted STREQUAL "AUTO" AND _declined_${_backend})
    set(FOURFOLD_${_backend}_REASON "${_declined_${_backend}}")
  else()
    cmake_language(CALL fourfold_find_${_folder} ${_wanted})
    if(NOT FOURFOLD_${_backend}_MISSING)
      set(FOURFOLD_${_backend}_BUILT TRUE)
      list(APPEND FOURFOLD_BACKENDS_ON ${_folder})
      cmake_language(CALL _fourfold_enable_${_backend})
    elseif(_wanted STREQUAL "ON")
      message(FATAL_ERROR
        "FOURFOLD_${_backend}=ON asks for the ${_folder} backend, but ${FOURFOLD_${_backend}_MISSING}. "
        "Or set FOURFOLD_${_backend} to AUTO or OFF.")
    else()
      set(FOURFOLD_${_backend}_REASON "${FOURFOLD_${_backend}_MISSING}")
    endif()
  endif()
endforeach()
