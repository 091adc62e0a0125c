// Grand Central Dispatch, as far as the Metal backend uses it.
#pragma once

typedef struct gpusim_queue* dispatch_queue_t;

#ifdef __cplusplus
extern "C"
#endif
void dispatch_sync_f(dispatch_queue_t queue, void* context, void (*work)(void*));
