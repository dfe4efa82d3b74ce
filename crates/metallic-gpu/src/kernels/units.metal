// Products of matrix units, c [16, 8] + a [16, 16] · b [16, 8], of bfloats or halfs with sums of floats.
//
// Lane 4 g + t has of `a` the columns 2 t, 2 t + 1 (x, y) and 2 t + 8, 2 t + 9 (z, w) of the rows g (x, z) and g + 8 (y, w), two to a
// word; of `b` the same rows of column g; of `c` the columns 2 t and 2 t + 1 of the rows g (x, y) and g + 8 (z, w). That is how
// NVIDIA's units take them; elsewhere the lanes read each other's, which is right and slow: plans take other kernels there.

#ifndef SOFTMETAL_MMA
template <typename T>
METAL_FUNC float2 two_of(uint word);
template <>
METAL_FUNC float2 two_of<bfloat>(uint word) {
    return as_type<float2>(uint2(word << 16, word & 0xffff0000u));
}
template <>
METAL_FUNC float2 two_of<half>(uint word) {
    return float2(as_type<half2>(word));
}

template <typename T>
METAL_FUNC float products_of(uint2 left, uint2 right) {
    const float2 near = two_of<T>(left.x) * two_of<T>(right.x), far = two_of<T>(left.y) * two_of<T>(right.y);
    return (near.x + near.y) + (far.x + far.y);
}
#endif

// What is read once, by whoever reads it.
template <typename T>
METAL_FUNC T streamed(device const T* p) {
#ifdef SOFTMETAL_MMA
    return softmetal_stream(p);
#else
    return *p;
#endif
}

// A number, or zeros, into threadgroup memory on its own way: `copies_are_there` and a barrier are to be passed before it is read.
template <typename T>
METAL_FUNC void copy_ahead(threadgroup T* to, device const T* from, bool live) {
#ifdef SOFTMETAL_MMA
    softmetal_copy_ahead(to, from, live);
#else
    *to = live ? *from : T(0);
#endif
}
METAL_FUNC void copies_are_there() {
#ifdef SOFTMETAL_MMA
    softmetal_wait_for_copies();
#endif
}
// The copies since the last call go as one. Those that went are there but for the last N, after the wait.
METAL_FUNC void copies_go() {
#ifdef SOFTMETAL_MMA
    softmetal_copies_go();
#endif
}
template <uint N>
METAL_FUNC void all_copies_but() {
#ifdef SOFTMETAL_MMA
    softmetal_all_copies_but<N>();
#endif
}

// Read in one piece, also where parts of it are needed one by one.
template <typename T>
METAL_FUNC T in_one(threadgroup const T* p) {
#ifdef SOFTMETAL_MMA
    return softmetal_in_one(p);
#else
    return *p;
#endif
}

// Two halfs to a word.
METAL_FUNC uint two_halfs(float2 x) {
#ifdef SOFTMETAL_MMA
    return softmetal_two_halfs(x.x, x.y);
#else
    return as_type<uint>(half2(x));
#endif
}
METAL_FUNC uint add_halfs(uint x, half y) {
#ifdef SOFTMETAL_MMA
    return softmetal_add_halfs(x, as_type<uint>(half2(y)));
#else
    return as_type<uint>(as_type<half2>(x) + half2(y));
#endif
}
METAL_FUNC uint fma_halfs(uint x, half y, uint z) {
#ifdef SOFTMETAL_MMA
    return softmetal_fma_halfs(x, as_type<uint>(half2(y)), z);
#else
    return as_type<uint>(fma(as_type<half2>(x), half2(y), as_type<half2>(z)));
#endif
}

// A number that was read ahead, of which nothing is to be computed before.
METAL_FUNC uint here(uint x) {
#ifdef SOFTMETAL_MMA
    return softmetal_here(x);
#else
    return x;
#endif
}

METAL_FUNC float here(float x) {
    return as_type<float>(here(as_type<uint>(x)));
}

METAL_FUNC uint and_or(uint x, uint mask, uint bits) {
#ifdef SOFTMETAL_MMA
    return softmetal_and_or(x, mask, bits);
#else
    return (x & mask) | bits;
#endif
}

// Four of the bytes of two words: the lowest digit of `WHICH` says which is the lowest, the second word's are 4 to 7.
template <uint WHICH>
METAL_FUNC uint pick_bytes(uint x, uint y) {
#ifdef SOFTMETAL_MMA
    return softmetal_pick_bytes<WHICH>(x, y);
#else
    const ulong both = ulong(x) | ulong(y) << 32;
    uint picked = 0;
    for (uint i = 0; i < 4; i++) picked |= uint(both >> (8 * (WHICH >> (4 * i) & 7)) & 255) << (8 * i);
    return picked;
#endif
}

// The bytes of a word, with their signs, added to a sum.
METAL_FUNC int add_bytes(uint x, int sum) {
#ifdef SOFTMETAL_MMA
    return softmetal_add_bytes(x, sum);
#else
    const char4 b = as_type<char4>(x);
    return sum + ((b.x + b.y) + (b.z + b.w));
#endif
}

// 1 / x to a few units in the last place.
METAL_FUNC float inverse_of(float x) {
#ifdef SOFTMETAL_MMA
    return softmetal_inverse(x);
#else
    return 1.0f / x;
#endif
}

template <typename T>
METAL_FUNC float4 unit_product(uint4 a, uint2 b, float4 c, uint lane) {
#ifdef SOFTMETAL_MMA
    return softmetal_mma<T>(a, b, c);
#else
    for (uint s = 0; s < 4; s++) {
        const uint4 left = simd_shuffle(a, ushort((lane & ~3u) + s));
        const uint2 even = simd_shuffle(b, ushort((lane & 3) * 8 + s)), odd = simd_shuffle(b, ushort((lane & 3) * 8 + 4 + s));
        c.x += products_of<T>(left.xz, even);
        c.y += products_of<T>(left.xz, odd);
        c.z += products_of<T>(left.yw, even);
        c.w += products_of<T>(left.yw, odd);
    }
    return c;
#endif
}

// The same of bytes, c [16, 8] + a [16, 32] · b [32, 8] with whole sums. Lane 4 g + t has of `a` four columns 4 t and on (x, y) and four
// 4 t + 16 and on (z, w) of the rows g (x, z) and g + 8 (y, w); of `b` the same rows of column g, with a sign; of `c` as above.
#ifndef SOFTMETAL_MMA
template <bool SIGNED>
METAL_FUNC int byte_products_of(uint2 left, uint2 right) {
    int sum = 0;
    for (uint i = 0; i < 4; i++) {
        const int2 a = SIGNED ? int2(as_type<char4>(left.x)[i], as_type<char4>(left.y)[i])
                              : int2(as_type<uchar4>(left.x)[i], as_type<uchar4>(left.y)[i]);
        sum += a.x * as_type<char4>(right.x)[i] + a.y * as_type<char4>(right.y)[i];
    }
    return sum;
}
#endif

template <bool SIGNED>
METAL_FUNC int4 unit_bytes(uint4 a, uint2 b, int4 c, uint lane) {
#ifdef SOFTMETAL_MMA
    return softmetal_mma_bytes<SIGNED>(a, b, c);
#else
    for (uint s = 0; s < 4; s++) {
        const uint4 left = simd_shuffle(a, ushort((lane & ~3u) + s));
        const uint2 even = simd_shuffle(b, ushort((lane & 3) * 8 + s)), odd = simd_shuffle(b, ushort((lane & 3) * 8 + 4 + s));
        c.x += byte_products_of<SIGNED>(left.xz, even);
        c.y += byte_products_of<SIGNED>(left.xz, odd);
        c.z += byte_products_of<SIGNED>(left.yw, even);
        c.w += byte_products_of<SIGNED>(left.yw, odd);
    }
    return c;
#endif
}
