// The root class, on GCC's Objective-C runtime.
#pragma once
#include <objc/objc.h>

typedef unsigned long NSUInteger;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject> {
  Class isa;
  int references;
}
+ (Class)class;
+ (instancetype)alloc;
- (instancetype)init;
- (void)dealloc;
- (instancetype)autorelease;
@end
