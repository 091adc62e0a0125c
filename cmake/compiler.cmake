# Finds the C++ compiler; reports a clear error if there is none or an unsupported one.
include(CheckLanguage)
# The compiler may have been installed since an earlier configure of this build directory.
if(DEFINED CACHE{CMAKE_CXX_COMPILER} AND NOT CMAKE_CXX_COMPILER)
  unset(CMAKE_CXX_COMPILER CACHE)
endif()
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  # scikit-build-core sets CXX to the compiler that Python was built with, so the user may not know the name.
  set(_asked_for)
  if(DEFINED ENV{CXX})
    set(_asked_for " (CXX is $ENV{CXX})")
  endif()
  message(FATAL_ERROR
    "fourfold needs a C++20 compiler and found none${_asked_for}. Install one (Debian, Ubuntu: apt-get install g++) or "
    "set the environment variable CXX to the compiler to use. `FOURFOLD_NO_EXTENSION=1 pip install .` needs no compiler, "
    "and installs plain PyTorch code.")
endif()
enable_language(CXX)

if(CMAKE_CXX_COMPILER_ID STREQUAL "MSVC")
  message(FATAL_ERROR
    "fourfold needs GCC or Clang, because its kernels use their C++ extensions, but ${CMAKE_CXX_COMPILER} is "
    "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}. Build it with GCC or Clang on Linux or macOS; on Windows, "
    "in WSL, or with clang-cl, which is unproved.")
endif()
if(WIN32)
  message(WARNING "fourfold on Windows is unproved: nothing of it has run there.")
endif()
if(CMAKE_SIZEOF_VOID_P EQUAL 4)
  message(FATAL_ERROR
    "fourfold needs a 64-bit system, as torch does, but ${CMAKE_CXX_COMPILER} compiles for 32 bits. Remove -m32 from "
    "CXXFLAGS, or set CXX to a compiler for 64 bits.")
endif()
list(LENGTH CMAKE_OSX_ARCHITECTURES _architectures)
if(_architectures GREATER 1)
  list(JOIN CMAKE_OSX_ARCHITECTURES " and " _architectures)
  message(FATAL_ERROR
    "fourfold builds for one architecture at a time, because its kernels use vector instructions, but "
    "CMAKE_OSX_ARCHITECTURES is ${_architectures}. Set it, or ARCHFLAGS, to one of them, and build once for each.")
endif()

# GCC 8 to 10 and old Clangs accept -std=c++20, but lack features that fourfold needs.
set(_oldest_GNU 11)
set(_oldest_Clang 14)
set(_oldest_AppleClang 14)
if(NOT cxx_std_20 IN_LIST CMAKE_CXX_COMPILE_FEATURES
   OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS "${_oldest_${CMAKE_CXX_COMPILER_ID}}")
  message(FATAL_ERROR
    "fourfold needs a C++20 compiler, but ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} "
    "(${CMAKE_CXX_COMPILER}) is not one. Install GCC 11 or Clang 14, or newer, or set CXX to one.")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
