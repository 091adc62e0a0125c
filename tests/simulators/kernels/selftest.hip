// The self-test as one source: the simulator's headers take longer to compile than all kernels.
#include "device.hip"
#include "driver.hip"
#include "faulty.hip"
#include "host.hip"
#include "right.hip"
