# Reads options whose values are AUTO, ON or OFF, and their synonyms.

# Sets `out` to AUTO, ON or OFF; to `default` if the option is empty; and to "" for any other value.
function(fourfold_read_switch option default out)
  string(TOUPPER "${${option}}" value)
  if(value STREQUAL "")
    set(value ${default})
  elseif(value MATCHES "^(1|TRUE|YES)$")
    set(value ON)
  elseif(value MATCHES "^(0|FALSE|NO)$")
    set(value OFF)
  elseif(NOT value MATCHES "^(AUTO|ON|OFF)$")
    set(value "")
  endif()
  set(${out} "${value}" PARENT_SCOPE)
endfunction()

# The same, but any other value is an error.
function(fourfold_require_switch option default out)
  fourfold_read_switch(${option} ${default} value)
  if(value STREQUAL "")
    message(FATAL_ERROR "${option} is ${${option}}; set it to AUTO, ON or OFF.")
  endif()
  set(${out} ${value} PARENT_SCOPE)
endfunction()
