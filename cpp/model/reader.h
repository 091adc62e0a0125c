// Reads a graph of a model file: every index names an earlier value, and every value is of the kind that is read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph.h"
#include "json.h"
#include "operators.h"

namespace fourfold::model {

class Reader {
 public:
  // tensors: those of the file, on the device. generator: as fourfold_program_generate() takes it, or
  // below 0 if nobody compiles programs for the device.
  Reader(const std::map<std::string, at::Tensor>& tensors, const Surroundings& surroundings, int32_t generator)
      : tensors_(tensors), surroundings_(surroundings), generator_(generator) {}

  // A list of {"name", "text", "operators"}. Throws Refused.
  void read_programs(const Json& given);
  // inputs: the kinds of the graph's inputs. Throws Refused.
  std::shared_ptr<CompiledGraph> graph_of(const Json& given, const std::vector<ValueKind>& inputs);
  // Of the graph that was read last, the kinds of its values.
  const std::vector<ValueKind>& kinds() const { return kinds_of_last_; }

 private:
  struct Program;
  // What is known of the graph that is being read.
  struct Scope {
    std::vector<ValueKind> kinds;
    std::vector<bool> is_new;  // parts of concatenations that nothing has written yet
    std::vector<size_t> last;  // for each value the step that reads it last
    CompiledGraph& graph;
    std::map<size_t, size_t> parts;  // of a concatenation, how many: the values behind it

    void add(ValueKind kind, bool is_part = false);
    // Throws Refused for memory that nothing has written: it may hold what other parts of the process left there.
    void read(size_t index);
    void write(size_t index);
  };

  using Call = decltype(GraphStep::call);

  Call step_of(const Json& given, Scope& scope);
  Call program_step_of(const Json& given, Scope& scope);
  Call operator_step_of(const Json& given, Scope& scope);
  Call item_step_of(const Json& given, Scope& scope);
  Call constant_step_of(const Json& given, Scope& scope);
  Call number_step_of(const Json& given, Scope& scope);
  Call concatenation_step_of(const Json& given, Scope& scope);
  Call loop_step_of(const Json& given, Scope& scope);
  Call call_step_of(const Json& given, Scope& scope);
  std::vector<size_t> inputs_of(const Json& given, Scope& scope) const;
  size_t value_of(const Json& given, Scope& scope) const;

  const std::map<std::string, at::Tensor>& tensors_;
  const Surroundings& surroundings_;
  int32_t generator_;
  std::vector<std::shared_ptr<const Program>> programs_;
  std::vector<ValueKind> kinds_of_last_;
  int depth_ = 0;
};

}  // namespace fourfold::model
