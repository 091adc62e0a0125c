# The functions that generated kernels call, with their includes: one text for each language, in the Python package's
# folder kernels. Every build has them, because a wheel without compiled GPU kernels compiles programs for GPUs too.
file(GLOB FOURFOLD_KERNEL_HEADERS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cpp/formulas/*.h" "${PROJECT_SOURCE_DIR}/cuda/*.cuh"
  "${PROJECT_SOURCE_DIR}/metal/*.h")
set(texts)
function(fourfold_kernel_text folder input name)
  set(output "${PROJECT_BINARY_DIR}/kernels/${name}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" -DINPUT=${input} "-DOUTPUT=${output}"
      "-DINCLUDES=${PROJECT_SOURCE_DIR}/${folder}:${PROJECT_SOURCE_DIR}/cpp" -P "${PROJECT_SOURCE_DIR}/cmake/embed.cmake"
    DEPENDS "${PROJECT_SOURCE_DIR}/cmake/embed.cmake" ${FOURFOLD_KERNEL_HEADERS}
    COMMENT "Writing kernels/${name}"
    VERBATIM)
  list(APPEND texts "${output}")
  set(texts "${texts}" PARENT_SCOPE)
endfunction()

fourfold_kernel_text(cuda nest.cuh cuda.cuh)
fourfold_kernel_text(metal nest.h metal.h)
add_custom_target(fourfold_kernel_texts ALL DEPENDS ${texts})
install(FILES ${texts} DESTINATION kernels COMPONENT python EXCLUDE_FROM_ALL)
