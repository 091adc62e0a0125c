// Nests that were compiled on another machine.
#pragma once

struct CompiledNest {
  const char* text;  // without the sizes of axes
  const char* layout;
  void* functions[8];
  int count;
  long bytes[3];  // scratch memory, for each column and for each element of a panel
  int sums;
};

extern const CompiledNest compiled_nests[];
extern const int compiled_nests_count;
