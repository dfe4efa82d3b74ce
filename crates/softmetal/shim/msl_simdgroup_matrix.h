// simdgroup_matrix<T, 8, 8> for half, bfloat and float: 64 elements spread over a simd-group, two neighbours of one row per lane.
//
// Which lane has which elements shows only through thread_elements(). Sources that use it rely on Apple's layout: lane bits
// (4, 2, 1) are the row, bits (3, 0) the pair of columns. NVIDIA's mma instructions have bits (4, 3, 2) and (1, 0). The PTX target
// keeps NVIDIA's layout unless MSL_APPLE_LAYOUT says that the source looks.
#pragma once
#include "msl_simd.h"

#if !defined(__NVPTX__) && !defined(MSL_APPLE_LAYOUT)
#define MSL_APPLE_LAYOUT 1
#endif

namespace metal {

#if MSL_APPLE_LAYOUT
MSL_FN ushort simdgroup_row(uint lane) { return (lane >> 2 & 4) | (lane >> 1 & 3); }
MSL_FN ushort simdgroup_column(uint lane) { return (lane >> 1 & 4) | (lane << 1 & 2); }
MSL_FN uint simdgroup_lane(uint row, uint column) { return (row & 4) << 2 | (column & 4) << 1 | (row & 3) << 1 | (column >> 1 & 1); }
#else
MSL_FN ushort simdgroup_row(uint lane) { return lane >> 2; }
MSL_FN ushort simdgroup_column(uint lane) { return (lane & 3) << 1; }
MSL_FN uint simdgroup_lane(uint row, uint column) { return row << 2 | column >> 1; }
#endif

template <class T, int Cols = 8, int Rows = 8> struct simdgroup_matrix {
    static_assert(Cols == 8 && Rows == 8, "a simdgroup_matrix is 8x8");
    static_assert(is_floating_point_v<T>, "a simdgroup_matrix has elements of type half, bfloat or float");
    typedef vec<T, 2> storage_type;
    storage_type elements;

    simdgroup_matrix() = default;
    // d on the diagonal, zero elsewhere.
    MSL_FN explicit simdgroup_matrix(T d) {
        const uint row = simdgroup_row(msl_lane()), column = simdgroup_column(msl_lane());
        elements = storage_type(row == column ? d : T(0), row == column + 1 ? d : T(0));
    }
    MSL_FN storage_type& thread_elements() { return elements; }
    MSL_FN const storage_type& thread_elements() const { return elements; }
};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

template <class T, int Cols = 8, int Rows = Cols> MSL_FN simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, Cols, Rows> m;
    m.elements = vec<T, 2>(value, value);
    return m;
}
template <class T, int Cols = 8, int Rows = Cols> MSL_FN simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(T value) {
    return simdgroup_matrix<T, Cols, Rows>(value);
}

// Element (row, column) is at p[(origin.y + row) * elements_per_row + origin.x + column], or with both exchanged if transposed.
template <class T, class U>
MSL_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const U* p, ulong elements_per_row = 8, ulong2 origin = ulong2(0ul),
                           bool transpose_matrix = false) {
    ulong row = simdgroup_row(msl_lane()), column = simdgroup_column(msl_lane());
    p += origin.y * elements_per_row + origin.x;
    const U* first = transpose_matrix ? p + column * elements_per_row + row : p + row * elements_per_row + column;
    m.elements = vec<T, 2>((T)first[0], (T)first[transpose_matrix ? elements_per_row : 1]);
}
template <class T, class U>
MSL_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const volatile U* p, ulong elements_per_row = 8, ulong2 origin = ulong2(0ul),
                           bool transpose_matrix = false) {
    simdgroup_load(m, (const U*)p, elements_per_row, origin, transpose_matrix);
}
template <class T, class U>
MSL_FN void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, U* p, ulong elements_per_row = 8, ulong2 origin = ulong2(0ul),
                            bool transpose_matrix = false) {
    ulong row = simdgroup_row(msl_lane()), column = simdgroup_column(msl_lane());
    p += origin.y * elements_per_row + origin.x;
    U* first = transpose_matrix ? p + column * elements_per_row + row : p + row * elements_per_row + column;
    first[0] = (U)m.elements.e[0], first[transpose_matrix ? elements_per_row : 1] = (U)m.elements.e[1];
}

#if defined(__NVPTX__)

#if MSL_APPLE_LAYOUT
// Each lane fetches what it has in the other layout: three lane bits change places.
template <class T> MSL_FN T to_mma_layout(T x) {
    const uint lane = msl_lane();
    return warp_read(~0u, x, (int)((lane & 0x11) | (lane & 0xc) >> 1 | (lane & 2) << 2));
}
template <class T> MSL_FN T from_mma_layout(T x) {
    const uint lane = msl_lane();
    return warp_read(~0u, x, (int)((lane & 0x11) | (lane & 6) << 1 | (lane & 8) >> 2));
}
#else
template <class T> MSL_FN T to_mma_layout(T x) { return x; }
template <class T> MSL_FN T from_mma_layout(T x) { return x; }
#endif

#if MSL_PTX_SM >= 80
// Whole products of matrix units, [16, 8] + [16, 16] · [16, 8], for sources that spread matrices as mma.m16n8k16 does.
#if !defined(MSL_PTX_EXACT)
#define SOFTMETAL_MMA 1
#define MSL_MMA(type) \
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(x), "+f"(y), "+f"(z), "+f"(w) \
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y))
template <class T> MSL_FN float4 softmetal_mma(uint4 a, uint2 b, float4 c) {
    float x = c.x, y = c.y, z = c.z, w = c.w;
    if constexpr (is_same_v<T, half>) MSL_MMA("f16");
    else MSL_MMA("bf16");
    return float4(x, y, z, w);
}
#undef MSL_MMA
// The same of bytes, [16, 8] + [16, 32] · [32, 8]; those of `b` have a sign.
#define MSL_MMA(type) \
    __asm__("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+r"(x), "+r"(y), "+r"(z), "+r"(w) \
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y))
template <bool SIGNED> MSL_FN int4 softmetal_mma_bytes(uint4 a, uint2 b, int4 c) {
    int x = c.x, y = c.y, z = c.z, w = c.w;
    if constexpr (SIGNED) MSL_MMA("s8");
    else MSL_MMA("u8");
    return int4(x, y, z, w);
}
#undef MSL_MMA
// Memory that is read once, by whoever reads it, and written by nobody while this kernel or the one before it runs: it takes no
// room in the first cache. In the order of the source, so that what is
// read ahead is under way while other things are computed.
MSL_FN uint4 softmetal_stream(const uint4* p) {
    uint x, y, z, w;
    __asm__ volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(p));
    return uint4(x, y, z, w);
}
MSL_FN uint2 softmetal_stream(const uint2* p) {
    uint x, y;
    __asm__ volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "l"(p));
    return uint2(x, y);
}
MSL_FN uint softmetal_stream(const uint* p) {
    uint x;
    __asm__ volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}
// Copies 4 or 16 bytes of a buffer, or zeros, into threadgroup memory past the registers. This thread's are there after the wait,
// those of others after a barrier that follows it.
template <class T> MSL_FN void softmetal_copy_ahead(T* to, const T* from, bool live) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 16, "copies are of 4 or 16 bytes");
    const uint place = (uint)(ulong)(__attribute__((address_space(3))) char*)(char*)to, bytes = live ? (uint)sizeof(T) : 0;
    if constexpr (sizeof(T) == 16) {
        __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
    } else {
        __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
    }
}
MSL_FN void softmetal_wait_for_copies() { __asm__ volatile("cp.async.wait_all;" ::: "memory"); }
// The copies since the last call go as one; all of those that went are there, but for the last N.
MSL_FN void softmetal_copies_go() { __asm__ volatile("cp.async.commit_group;" ::: "memory"); }
template <uint N> MSL_FN void softmetal_all_copies_but() { __asm__ volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// Read from threadgroup memory in one piece: what is needed part by part is else read so, with lanes on the same banks.
MSL_FN uint4 softmetal_in_one(const uint4* p) {
    uint x, y, z, w;
    const uint place = (uint)(ulong)(__attribute__((address_space(3))) const char*)(const char*)p;
    __asm__ volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(place));
    return uint4(x, y, z, w);
}
MSL_FN uint2 softmetal_in_one(const uint2* p) {
    uint x, y;
    const uint place = (uint)(ulong)(__attribute__((address_space(3))) const char*)(const char*)p;
    __asm__ volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(place));
    return uint2(x, y);
}
// The same number, of which nothing is computed before this: what was read ahead is not waited for where it is read.
MSL_FN uint softmetal_here(uint x) {
    __asm__ volatile("" : "+r"(x));
    return x;
}
// Two halfs to a word.
MSL_FN uint softmetal_add_halfs(uint x, uint y) {
    __asm__("add.rn.f16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
    return x;
}
MSL_FN uint softmetal_fma_halfs(uint x, uint y, uint z) {
    __asm__("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(z) : "r"(x), "r"(y));
    return z;
}
// Four of the bytes of two words, by the digits of `which`.
template <uint WHICH> MSL_FN uint softmetal_pick_bytes(uint x, uint y) {
    uint r;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "n"(WHICH));
    return r;
}
// The bytes of a word, with their signs, added to a sum.
MSL_FN int softmetal_add_bytes(uint x, int sum) {
    __asm__("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0x01010101));
    return sum;
}
// About 1 / x.
MSL_FN float softmetal_inverse(float x) {
    float r;
    __asm__("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// Two numbers as halfs, to the nearest, in one instruction.
MSL_FN uint softmetal_two_halfs(float x, float y) {
    uint r;
    __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}
// (x & mask) | bits in one instruction.
MSL_FN uint softmetal_and_or(uint x, uint mask, uint bits) {
    uint r;
    __asm__("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(bits));
    return r;
}
#endif
// In: two b16 elements of a row per lane. Out: the same of the transposed matrix, which is how mma wants B.
MSL_FN uint mma_transpose(uint x) {
    uint r;
    __asm__ volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
    return r;
}
// 16x8 times 8x8, of which only the upper 8 rows are used.
#define MSL_MMA16(type) \
    __asm__ volatile("mma.sync.aligned.m16n8k8.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
                     : "+f"(c.x), "+f"(c.y), "+f"(unused0), "+f"(unused1) \
                     : "r"(a), "r"(0u), "r"(b))
template <class T> MSL_FN float2 mma_16_bit(uint a, uint b, float2 c) {
    float unused0 = 0, unused1 = 0;
    if constexpr (is_same_v<T, half>) MSL_MMA16("f16");
    else MSL_MMA16("bf16");
    return c;
}
#undef MSL_MMA16
// The columns of A and rows of B in the order 0 2 4 6 1 3 5 7, so that a lane's own two elements are the ones mma asks of it.
MSL_FN float2 mma_tf32(uint2 a, uint2 b, float2 c) {
    float unused0 = 0, unused1 = 0;
    __asm__ volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, {%0, %1, %2, %3};"
                     : "+f"(c.x), "+f"(c.y), "+f"(unused0), "+f"(unused1)
                     : "r"(a.x), "r"(0u), "r"(a.y), "r"(b.x), "r"(b.y));
    return c;
}
MSL_FN uint to_tf32(float x) {
    uint r;
    __asm__("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
MSL_FN uint rest_of_tf32(float x, uint high) {
    const float h = __builtin_bit_cast(float, high);
    return to_tf32((high & 0x7f800000u) == 0x7f800000u ? 0.0f : x - h);
}
// float by three products of tf32 halves; what is left out is below 2⁻²² of the result.
MSL_FN float2 mma_float(float2 a, float2 b, float2 c) {
    const uint bx = __builtin_bit_cast(uint, b.x), by = __builtin_bit_cast(uint, b.y);
    const uint low = mma_transpose((bx & 0xffffu) | by << 16), high = mma_transpose(bx >> 16 | (by & 0xffff0000u));
    b.x = __builtin_bit_cast(float, (low & 0xffffu) | high << 16);
    b.y = __builtin_bit_cast(float, low >> 16 | (high & 0xffff0000u));
    const uint2 ah(to_tf32(a.x), to_tf32(a.y)), bh(to_tf32(b.x), to_tf32(b.y));
    const uint2 al(rest_of_tf32(a.x, ah.x), rest_of_tf32(a.y, ah.y)), bl(rest_of_tf32(b.x, bh.x), rest_of_tf32(b.y, bh.y));
    return mma_tf32(ah, bh, mma_tf32(ah, bl, mma_tf32(al, bh, c)));
}
#endif

template <class D, class A, class B, class C>
MSL_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
#if MSL_PTX_SM >= 80 && !defined(MSL_PTX_EXACT)
    const float2 sum = to_mma_layout(float2(c.elements));
    float2 r;
    if constexpr (is_same_v<A, B> && sizeof(A) == 2)
        r = mma_16_bit<A>(to_mma_layout(as_type<uint>(a.elements)), mma_transpose(to_mma_layout(as_type<uint>(b.elements))), sum);
    else
        r = mma_float(to_mma_layout(float2(a.elements)), to_mma_layout(float2(b.elements)), sum);
    d.elements = vec<D, 2>(from_mma_layout(r));
#else
    const uint lane = msl_lane(), row = simdgroup_row(lane), column = simdgroup_column(lane);
    float2 sum = float2(c.elements);
    const float2 left = float2(a.elements), right = float2(b.elements);
#pragma unroll
    for (uint k = 0; k < 8; k++) {
        const float x = warp_read(~0u, k & 1 ? left.y : left.x, (int)simdgroup_lane(row, k));
        const float2 y = warp_read(~0u, right, (int)simdgroup_lane(k, column));
        sum = float2(__builtin_fmaf(x, y.x, sum.x), __builtin_fmaf(x, y.y, sum.y));
    }
    d.elements = vec<D, 2>(sum);
#endif
}

#elif defined(MSL_LINT)

template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c);

#else

namespace simd_impl {
template <class A, class B, class C> struct mma_in {
    vec<A, 2> a;
    vec<B, 2> b;
    vec<C, 2> c;
};
// In float, rounded once at the end.
template <class D, class A, class B, class C> MSL_UNCHECKED msl_u64 mma(void** in, void** out, uint mask) {
    float a[8][8] = {}, b[8][8] = {}, c[8][8] = {};
    for (uint lane = 0; lane < MSL_SIMD_WIDTH; lane++) {
        if (!(mask >> lane & 1)) continue;
        const auto& m = *(const mma_in<A, B, C>*)in[lane];
        const int row = simdgroup_row(lane), column = simdgroup_column(lane);
        for (int j = 0; j < 2; j++) {
            a[row][column + j] = (float)m.a.e[j], b[row][column + j] = (float)m.b.e[j], c[row][column + j] = (float)m.c.e[j];
        }
    }
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 8; k++)
            for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
    for (uint lane = 0; lane < MSL_SIMD_WIDTH; lane++) {
        if (!(mask >> lane & 1)) continue;
        const int row = simdgroup_row(lane), column = simdgroup_column(lane);
        *(vec<D, 2>*)out[lane] = vec<D, 2>((D)c[row][column], (D)c[row][column + 1]);
    }
    // Each lane has a part of the matrices, and all want all parts.
    return mask == ~0u ? 0 : (msl_u64)__builtin_ctz(~mask) << 32 | mask;
}
} // namespace simd_impl

template <class D, class A, class B, class C>
MSL_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, MSL_AT) {
    simd_impl::mma_in<A, B, C> in{a.elements, b.elements, c.elements};
    vec<D, 2> r;
    msl_rt_simd(&simd_impl::mma<D, A, B, C>, &in, &r, file, line, MSL_SIMD_WIDTH);
    d.elements = r;
}

#endif

template <class D, class A, class B>
MSL_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)));
}
template <class T> MSL_FN simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8>& a, const simdgroup_matrix<T, 8, 8>& b) {
    simdgroup_matrix<T, 8, 8> d;
    simdgroup_multiply(d, a, b);
    return d;
}
#define MSL_ELEMENTWISE(op) \
    template <class T> \
    MSL_FN simdgroup_matrix<T, 8, 8> operator op(const simdgroup_matrix<T, 8, 8>& a, const simdgroup_matrix<T, 8, 8>& b) { \
        simdgroup_matrix<T, 8, 8> d; \
        d.elements = a.elements op b.elements; \
        return d; \
    }
MSL_ELEMENTWISE(+) MSL_ELEMENTWISE(-)
#undef MSL_ELEMENTWISE

} // namespace metal
