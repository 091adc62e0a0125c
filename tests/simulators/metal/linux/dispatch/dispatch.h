// The part of Grand Central Dispatch that the Metal backend uses.
#pragma once

typedef struct gpusim_queue* dispatch_queue_t;

#ifdef __cplusplus
extern "C"
#endif
void dispatch_sync_f(dispatch_queue_t queue, void* context, void (*work)(void*));
