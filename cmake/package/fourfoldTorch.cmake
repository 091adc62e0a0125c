# What a C++ program with fourfold uses of torch, for the installed package and for projects that add the sources.

# Finds the torch that find_package(Torch) would find; sets `prefix` to its folder, or `wrong` to what is wrong. It
# doesn't run TorchConfig.cmake, because a CUDA build's requires a CUDA toolkit, which programs don't need. A program
# may run it before or after, and finds the same torch.
function(fourfold_find_torch minimum prefix wrong)
  set(${wrong} "" PARENT_SCOPE)
  find_package(Torch QUIET CONFIG CONFIGS TorchConfigVersion.cmake)
  if(NOT Torch_FOUND)
    set(${wrong} "fourfold needs torch ${minimum} or newer, and find_package(Torch) finds none. Set Torch_ROOT to a \
libtorch, or add what `python -c 'import torch; print(torch.utils.cmake_prefix_path)'` prints to CMAKE_PREFIX_PATH."
      PARENT_SCOPE)
    return()
  endif()
  get_filename_component(found "${Torch_DIR}/../../.." ABSOLUTE)
  if(PACKAGE_VERSION VERSION_LESS minimum)
    set(${wrong} "fourfold needs torch ${minimum} or newer, but ${found} is torch ${PACKAGE_VERSION}. Set Torch_ROOT to a \
newer libtorch." PARENT_SCOPE)
  elseif(NOT EXISTS "${found}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}torch_cpu${CMAKE_SHARED_LIBRARY_SUFFIX}")
    set(${wrong} "fourfold needs torch's shared libraries, but ${found}/lib has no torch_cpu among them. Set Torch_ROOT \
to a libtorch with shared libraries." PARENT_SCOPE)
  endif()
  set(${prefix} "${found}" PARENT_SCOPE)
endfunction()

# Adds the headers and libraries of the torch in `torch` to a target for libfourfold. By paths, because torch's targets
# refer to libraries of the CUDA toolkit, and are visible only in the directory that found them.
function(fourfold_serve_programs target library torch)
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} SYSTEM INTERFACE
    "${torch}/include" "${torch}/include/torch/csrc/api/include")
  set(libraries)
  foreach(name IN ITEMS torch torch_cpu c10)
    if(WIN32)
      list(APPEND libraries "${torch}/lib/${name}.lib")
    else()
      list(APPEND libraries "${torch}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
    endif()
  endforeach()
  if(NOT APPLE AND NOT WIN32)
    # Ubuntu's compilers drop libraries without a used symbol: libfourfold if only an AOTInductor package calls its
    # operators, or libtorch.so, and with it torch's GPU libraries.
    set(kept)
    foreach(path IN ITEMS "${library}" LISTS libraries)
      string(APPEND kept ",\"${path}\"")
    endforeach()
    target_link_libraries(${target} INTERFACE "-Wl,--push-state,--no-as-needed${kept},--pop-state")
  endif()
  target_link_libraries(${target} INTERFACE ${libraries})
endfunction()
