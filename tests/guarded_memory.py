"""Memory that ends at an unreadable page, so that a read beyond its end faults."""

import ctypes
import mmap

import numpy


def before_a_wall(array: numpy.ndarray) -> numpy.ndarray:
    """A copy of a vector that ends at an unreadable page."""
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    everything = numpy.frombuffer(memory, numpy.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    start = everything.ctypes.data
    assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0) == 0, ctypes.get_errno()
    copy = everything[size - array.nbytes : size].view(array.dtype)
    copy[:] = array
    return copy
