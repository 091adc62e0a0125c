# Writes a file that is compiled at run time as one text with its includes; with NAME, a C++ source that defines the
# text under that name.
#   cmake -DINPUT=nest.cuh -DOUTPUT=cuda.cuh -DINCLUDES=cuda:cpp -P embed.cmake
#   cmake -DINPUT=elementwise.metal -DOUTPUT=... -DNAME=softshrink_shaders -DINCLUDES=metal:cpp [-DFORMULA=...] -P embed.cmake
# FORMULA replaces FOURFOLD_FORMULA_FILE.
cmake_minimum_required(VERSION 3.24)  # a script with -P has no project, whose policies it would have
string(REPLACE ":" ";" INCLUDES "${INCLUDES}")

# Appends the file's text, with each #include "..." replaced by that file's text. Respects `#pragma once`.
function(flatten name)
  set(file)
  foreach(folder IN LISTS INCLUDES)
    if(EXISTS "${folder}/${name}" AND NOT file)
      set(file "${folder}/${name}")
    endif()
  endforeach()
  if(NOT file)
    message(FATAL_ERROR "Cannot find ${name} in ${INCLUDES}, which ${INPUT} includes.")
  endif()
  file(READ "${file}" rest)
  string(REPLACE "#include FOURFOLD_FORMULA_FILE" "#include \"${FORMULA}\"" rest "${rest}")
  if(rest MATCHES "#pragma once\n")
    get_property(seen GLOBAL PROPERTY seen)
    if(name IN_LIST seen)
      return()
    endif()
    set_property(GLOBAL APPEND PROPERTY seen "${name}")
    string(REPLACE "#pragma once\n" "\n" rest "${rest}")
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY text "#line 1 \"${name}\"\n")
  set(line 1)
  string(FIND "${rest}" "#include \"" at)
  while(NOT at EQUAL -1)
    string(SUBSTRING "${rest}" 0 ${at} before)
    string(SUBSTRING "${rest}" ${at} -1 rest)
    string(REGEX MATCH "^#include \"([^\"]+)\"\n" found "${rest}")
    set(included "${CMAKE_MATCH_1}")
    string(LENGTH "${found}" length)
    string(SUBSTRING "${rest}" ${length} -1 rest)
    set_property(GLOBAL APPEND_STRING PROPERTY text "${before}")
    flatten("${included}")
    string(REGEX MATCHALL "\n" ends "${before}")
    list(LENGTH ends count)
    math(EXPR line "${line} + ${count} + 1")
    set_property(GLOBAL APPEND_STRING PROPERTY text "#line ${line} \"${name}\"\n")
    string(FIND "${rest}" "#include \"" at)
  endwhile()
  set_property(GLOBAL APPEND_STRING PROPERTY text "${rest}")
endfunction()

flatten("${INPUT}")
get_property(text GLOBAL PROPERTY text)
if(NOT NAME)
  file(WRITE "${OUTPUT}" "${text}")
  return()
endif()
file(WRITE "${OUTPUT}" "#include \"encoder.h\"

namespace fourfold::mps {

extern const Source ${NAME};
const Source ${NAME} = {\"${INPUT}\", R\"metal(${text})metal\"};

}  // namespace fourfold::mps
")
