# Finds Python and torch. Sets FOURFOLD_TORCH_FLAVOUR (cpu, cuda, rocm) and defines the target fourfold::torch.
set(FOURFOLD_TORCH_MINIMUM 2.10)
set(FOURFOLD_PYTHON_MINIMUM 3.10)

set(_components Interpreter)
if(FOURFOLD_PYTHON)
  list(APPEND _components Development.Module)
endif()
find_package(Python ${FOURFOLD_PYTHON_MINIMUM} QUIET COMPONENTS ${_components})
if(FOURFOLD_PYTHON AND NOT Python_FOUND)
  # For the error message.
  find_package(Python QUIET COMPONENTS Interpreter)
  if(NOT Python_FOUND)
    message(FATAL_ERROR "fourfold needs Python ${FOURFOLD_PYTHON_MINIMUM} or newer and found none. Set "
      "Python_EXECUTABLE to one, or FOURFOLD_PYTHON to OFF for the C++ library alone.")
  elseif(Python_VERSION VERSION_LESS FOURFOLD_PYTHON_MINIMUM)
    message(FATAL_ERROR "fourfold needs Python ${FOURFOLD_PYTHON_MINIMUM} or newer, but ${Python_EXECUTABLE} is Python "
      "${Python_VERSION}. Set Python_EXECUTABLE to a newer one, or run pip with it.")
  endif()
  message(FATAL_ERROR "The Python module needs the headers of Python ${Python_VERSION}, and ${Python_EXECUTABLE} has "
    "none. Install them (Debian, Ubuntu: apt-get install python3-dev), or set FOURFOLD_PYTHON to OFF for the C++ "
    "library alone.")
endif()

# Sets <package>_DIR to the CMake files inside a Python package, if it is installed and the user sets no other. Not
# cached, because the next configure of this build directory may use another Python. pip builds in an environment of its
# own, where the package may be missing: then it is the one of the environment that pip installs into.
function(fourfold_find_in_python package module subdirectory)
  if(${package}_DIR OR ${package}_ROOT OR DEFINED ENV{${package}_ROOT} OR NOT Python_Interpreter_FOUND)
    return()
  endif()
  # find_spec rather than import: importing torch takes seconds, and a CUDA build may fail to import on a build machine.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util as u, os, sysconfig; s = u.find_spec('${module}'); \
d = os.path.dirname(s.origin) if s and s.origin else os.path.join(sysconfig.get_path('platlib'), '${module}'); \
print(d if os.path.isdir(d) else '')"
    OUTPUT_VARIABLE directory OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(directory)
    file(TO_CMAKE_PATH "${directory}/${subdirectory}" directory)
    set(${package}_DIR "${directory}" PARENT_SCOPE)
  endif()
endfunction()

# A project that adds these sources finds torch by itself, without Python.
if(PROJECT_IS_TOP_LEVEL OR FOURFOLD_PYTHON)
  fourfold_find_in_python(Torch torch share/cmake/Torch)
endif()

# With a CUDA build of torch, find_package(Torch) fails without a CUDA toolkit. libfourfold doesn't link torch's CUDA
# libraries. Defining this target, for which torch looks first, skips torch's search for the toolkit.
if(NOT TARGET torch::cudart)
  add_library(torch::cudart INTERFACE IMPORTED)
endif()
# find_package(Torch) also sets CMAKE_CUDA_ARCHITECTURES to OFF and changes the global CUDA flags; a ROCm build sets
# PYTORCH_ROCM_ARCH.
set(_kept CMAKE_CUDA_ARCHITECTURES CMAKE_CUDA_FLAGS PYTORCH_ROCM_ARCH)
foreach(_variable IN LISTS _kept)
  set(_saved_${_variable} "${${_variable}}")
endforeach()
# It warns if it doesn't find kineto, a profiler for static builds, which wheels lack; it doesn't search if this is set.
set(kineto_LIBRARY unused)
find_package(Torch QUIET)
unset(kineto_LIBRARY)
foreach(_variable IN LISTS _kept)
  if(_saved_${_variable})
    set(${_variable} "${_saved_${_variable}}")
  else()
    unset(${_variable})
  endif()
endforeach()

if(NOT Torch_FOUND)
  if(Torch_CONSIDERED_CONFIGS)
    message(FATAL_ERROR
      "CMake found torch, but rejected its package files: ${Torch_CONSIDERED_CONFIGS}. ${Torch_NOT_FOUND_MESSAGE} "
      "Reinstall torch ${FOURFOLD_TORCH_MINIMUM} or newer, or point Torch_ROOT at another one.")
  endif()
  if(NOT PROJECT_IS_TOP_LEVEL AND NOT FOURFOLD_PYTHON)
    message(FATAL_ERROR "fourfold needs torch, but CMake found none. Set Torch_ROOT to a libtorch, or add what "
      "`python -c 'import torch; print(torch.utils.cmake_prefix_path)'` prints to CMAKE_PREFIX_PATH.")
  endif()
  message(FATAL_ERROR
    "fourfold needs torch, but ${Python_EXECUTABLE} has none. Install torch "
    "${FOURFOLD_TORCH_MINIMUM} or newer there, or point Torch_ROOT at a libtorch.")
endif()
if(Torch_VERSION VERSION_LESS FOURFOLD_TORCH_MINIMUM)
  message(FATAL_ERROR
    "fourfold needs torch ${FOURFOLD_TORCH_MINIMUM} or newer, the first with the stable ABI that it is built on, but "
    "found ${Torch_VERSION} in ${TORCH_INSTALL_PREFIX}. Upgrade it: `pip install 'torch>=${FOURFOLD_TORCH_MINIMUM}'`.")
endif()

find_library(FOURFOLD_TORCH_CPU_LIBRARY torch_cpu PATHS "${TORCH_INSTALL_PREFIX}/lib" NO_DEFAULT_PATH REQUIRED NO_CACHE)
set(FOURFOLD_TORCH_FLAVOUR cpu)
foreach(_flavour IN ITEMS cuda hip)
  find_library(_torch_${_flavour} torch_${_flavour} PATHS "${TORCH_INSTALL_PREFIX}/lib" NO_DEFAULT_PATH NO_CACHE)
  if(_torch_${_flavour})
    string(REPLACE hip rocm FOURFOLD_TORCH_FLAVOUR ${_flavour})
  endif()
endforeach()

# Sources are compiled with torch's headers by a link in the build folder: with the same torch, ccache then has the same
# objects for all environments, of which pip makes a new one for each isolated build.
set(FOURFOLD_TORCH "${PROJECT_BINARY_DIR}/torch")
file(CREATE_LINK "${TORCH_INSTALL_PREFIX}" "${FOURFOLD_TORCH}" SYMBOLIC RESULT _unlinked)
if(_unlinked)  # Windows may require a privilege
  set(FOURFOLD_TORCH "${TORCH_INSTALL_PREFIX}")
endif()

# Not ${TORCH_LIBRARIES}: it can contain a -NOTFOUND, and libraries that the stable ABI does not need.
add_library(fourfold_torch INTERFACE)
add_library(fourfold::torch ALIAS fourfold_torch)
target_include_directories(fourfold_torch SYSTEM INTERFACE "${FOURFOLD_TORCH}/include")
target_link_libraries(fourfold_torch INTERFACE "${FOURFOLD_TORCH_CPU_LIBRARY}")
