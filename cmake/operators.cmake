# Configures a source that is compiled once for each elementwise operator.

# The name of an operator's formula type: HardSwish for "hard_swish".
function(fourfold_type_name variable operator)
  string(REGEX MATCHALL "[^_]+" words "${operator}")
  set(type)
  foreach(word IN LISTS words)
    string(SUBSTRING ${word} 0 1 first)
    string(SUBSTRING ${word} 1 -1 rest)
    string(TOUPPER ${first} first)
    string(APPEND type ${first}${rest})
  endforeach()
  set(${variable} ${type} PARENT_SCOPE)
endfunction()

# Writes <name><extension> into `folder` for each elementwise operator, which includes `source`. tests/simulated.py does
# the same.
function(fourfold_elementwise_sources variable source folder extension)
  set(sources)
  foreach(operator IN LISTS FOURFOLD_ELEMENTWISE)
    if(NOT EXISTS "${PROJECT_SOURCE_DIR}/cpp/formulas/${operator}.h")
      message(FATAL_ERROR "Cannot find source file: cpp/formulas/${operator}.h, the formula of ${operator}.")
    endif()
    fourfold_type_name(type ${operator})
    set(file "${folder}/${operator}${extension}")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/elementwise.in" "${file}" @ONLY)
    list(APPEND sources "${file}")
  endforeach()
  set(${variable} "${sources}" PARENT_SCOPE)
endfunction()
