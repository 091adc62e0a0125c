// Reads and checks the graphs of a model file: every index refers to an earlier value of the expected kind.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../graph/graph.h"
#include "constants.h"
#include "json.h"
#include "operators.h"

namespace fourfold::model {

class Reader {
 public:
  // tensors: those of the file, on the device. generator: see fourfold_program_generate(); negative if programs can't
  // be compiled for the device.
  Reader(const std::map<std::string, at::Tensor>& tensors, const Surroundings& surroundings, int32_t generator)
      : tensors_(tensors), surroundings_(surroundings), generator_(generator) {}

  // A list of {"name", "text", "operators"}. Throws Refused.
  void read_programs(const Json& given);
  // inputs: the kinds of the graph's inputs. constants: those inputs that are the same tensors in every call, the others
  // None; or none. Throws Refused.
  std::shared_ptr<CompiledGraph> graph_of(const Json& given, const std::vector<ValueKind>& inputs, Values constants = {});
  // The matrices that steps of all graphs may pack.
  std::vector<Weight> take_weights();
  // Whether a graph returns or changes a tensor of the model.
  bool is_shared(const at::Tensor& tensor) const;

 private:
  struct Program;
  // The state of the graph that is being read.
  struct Scope {
    std::vector<ValueKind> kinds;
    std::vector<bool> is_new;  // parts of concatenations that nothing has written yet
    std::vector<size_t> last;  // for each value, the step that reads it last
    CompiledGraph& graph;
    std::map<size_t, size_t> parts;  // by concatenation: the number of its parts, which are the next values
    Constants constants;
    std::map<size_t, std::pair<size_t, OperatorStep>> folded;  // views of constants, by value: the step, and what it was

    // aliased: the values in whose memory it may be.
    void add(ValueKind kind, bool is_part = false, const std::vector<size_t>& aliased = {});
    // Throws Refused for unwritten memory, which may contain data of other parts of the process.
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
  void share(const Scope& scope, size_t value);

  const std::map<std::string, at::Tensor>& tensors_;
  const Surroundings& surroundings_;
  int32_t generator_;
  std::vector<std::shared_ptr<const Program>> programs_;
  Weights weights_;
  std::vector<at::Tensor> shared_;  // tensors of the model that graphs return or change
  std::vector<ValueKind> kinds_of_last_;
  int depth_ = 0;
};

}  // namespace fourfold::model
