// Converts between a dtype's representation in memory and the value that a program computes with. Needs the types, the
// storage types boolean, float16 and bfloat16, as_bits<Unsigned>(x) and of_bits<T>(bits), and half_bits, float_of_half,
// bfloat_bits, float_of_bfloat.

// Value: in registers. Bits: an unsigned integer of the size in memory.
template <typename Kind>
struct Stored;

template <typename Kind, typename T, typename Unsigned>
struct StoredInteger {
  typedef T Value;
  typedef Unsigned Bits;
  FOURFOLD_FN static Value value(Bits bits) { return Value(Kind(bits)); }
  FOURFOLD_FN static Bits bits(Value value) { return Bits(value); }
};
template <>
struct Stored<int8> : StoredInteger<int8, int32, uint8> {};
template <>
struct Stored<uint8> : StoredInteger<uint8, int32, uint8> {};
template <>
struct Stored<int16> : StoredInteger<int16, int32, uint16> {};
template <>
struct Stored<int32> : StoredInteger<int32, int32, uint32> {};
template <>
struct Stored<int64> : StoredInteger<int64, int64, uint64> {};

template <typename T, typename Unsigned>
struct StoredFloating {
  typedef T Value;
  typedef Unsigned Bits;
  FOURFOLD_FN static Value value(Bits bits) { return of_bits<T>(bits); }
  FOURFOLD_FN static Bits bits(Value value) { return as_bits<Bits>(value); }
};
template <>
struct Stored<float32> : StoredFloating<float32, uint32> {};

template <>
struct Stored<boolean> {
  typedef bool Value;
  typedef uint8 Bits;
  FOURFOLD_FN static Value value(Bits bits) { return bits != 0; }
  FOURFOLD_FN static Bits bits(Value value) { return Bits(value ? 1 : 0); }
};
template <>
struct Stored<float16> {
  typedef float32 Value;
  typedef uint16 Bits;
  FOURFOLD_FN static Value value(Bits bits) { return float_of_half(bits); }
  FOURFOLD_FN static Bits bits(Value value) { return half_bits(value); }
};
template <>
struct Stored<bfloat16> {
  typedef float32 Value;
  typedef uint16 Bits;
  FOURFOLD_FN static Value value(Bits bits) { return float_of_bfloat(bits); }
  FOURFOLD_FN static Bits bits(Value value) { return bfloat_bits(value); }
};

// The 32-bit words of a vector access; fewer than 4 bytes also take one word.
template <int count>
struct Words {
  uint32 w[count];
};
template <typename Kind, int n>
struct Packing {
  enum { bytes = n * int(sizeof(Kind)), words = bytes < 4 ? 1 : bytes / 4 };
};

// Gets and sets an element's bits in the words; size: its bytes.
template <int size>
struct AmongWords {
  template <int count>
  FOURFOLD_FN static uint32 get(Words<count> words, int k) { return words.w[k * size / 4] >> (k * size % 4 * 8); }
  template <int count>
  FOURFOLD_FN static Words<count> set(Words<count> words, int k, uint32 bits) {
    words.w[k * size / 4] |= bits << (k * size % 4 * 8);
    return words;
  }
};
template <>
struct AmongWords<8> {
  template <int count>
  FOURFOLD_FN static uint64 get(Words<count> words, int k) {
    return words.w[2 * k] | uint64(words.w[2 * k + 1]) << 32;
  }
  template <int count>
  FOURFOLD_FN static Words<count> set(Words<count> words, int k, uint64 bits) {
    words.w[2 * k] = uint32(bits);
    words.w[2 * k + 1] = uint32(bits >> 32);
    return words;
  }
};

template <int n, typename Kind>
struct Packed {
  typedef Stored<Kind> Of;
  typedef typename Of::Bits Bits;
  typedef Vec<typename Of::Value, n> Values;
  typedef Words<Packing<Kind, n>::words> Memory;
  FOURFOLD_FN static Values values(Memory memory) {
    Values result;
#pragma unroll
    for (int k = 0; k < n; ++k) result.v[k] = Of::value(Bits(AmongWords<sizeof(Kind)>::get(memory, k)));
    return result;
  }
  FOURFOLD_FN static Memory words(Values values) {
    Memory result = {};
#pragma unroll
    for (int k = 0; k < n; ++k) result = AmongWords<sizeof(Kind)>::set(result, k, Of::bits(values.v[k]));
    return result;
  }
};
