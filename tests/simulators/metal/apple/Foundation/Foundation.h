// The declarations of Apple's Foundation that the Metal backend uses, for tests on systems without it.
#pragma once
#import <objc/NSObject.h>

#include <stddef.h>

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char*)text;
@property(readonly) const char* UTF8String;
@end

@interface NSError : NSObject
@property(readonly, copy) NSString* localizedDescription;
@end
