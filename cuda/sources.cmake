# The .cu files by name, so that a missing one is found at configure: one for each operator, then those that several
# share. hip/ reads this too.
list(TRANSFORM FOURFOLD_OPERATORS APPEND ".cu" OUTPUT_VARIABLE FOURFOLD_CUDA_SOURCES)
list(APPEND FOURFOLD_CUDA_SOURCES launch.cu recurrent.cu)
