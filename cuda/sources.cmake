# The .cu files by name, so that configure detects missing ones: one for each operator, then shared ones. Elementwise
# operators use elementwise.cu instead. hip/ includes this file too.
set(FOURFOLD_CUDA_SOURCES ${FOURFOLD_OPERATORS})
list(REMOVE_ITEM FOURFOLD_CUDA_SOURCES ${FOURFOLD_ELEMENTWISE})
list(TRANSFORM FOURFOLD_CUDA_SOURCES APPEND ".cu")
list(APPEND FOURFOLD_CUDA_SOURCES launch.cu program.cu recurrent.cu)
