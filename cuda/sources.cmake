# The .cu files by name, so that a missing one is found at configure: one for each operator, then those that several
# share. hip/ reads this too. elementwise.cu serves the operators that have none.
set(FOURFOLD_CUDA_SOURCES ${FOURFOLD_OPERATORS})
list(REMOVE_ITEM FOURFOLD_CUDA_SOURCES ${FOURFOLD_ELEMENTWISE})
list(TRANSFORM FOURFOLD_CUDA_SOURCES APPEND ".cu")
list(APPEND FOURFOLD_CUDA_SOURCES launch.cu program.cu recurrent.cu)
