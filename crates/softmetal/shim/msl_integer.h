// Integer functions, and packing of colours and normals into integers.
#pragma once
#include "msl_math.h"

namespace metal {

#define MSL_INT template <class T, enable_if_t<is_integral_v<T>, int> = 0> MSL_FN constexpr T
#define MSL_INT1(n) \
    template <class T, int N> MSL_FN constexpr vec<T, N> n(vec<T, N> x) { \
        vec<T, N> r{}; \
        MSL_EACH(N, n(x.e[i])); \
        return r; \
    }
#define MSL_INT2(n) \
    template <class T, int N> MSL_FN constexpr vec<T, N> n(vec<T, N> x, vec<T, N> y) { \
        vec<T, N> r{}; \
        MSL_EACH(N, n(x.e[i], y.e[i])); \
        return r; \
    }
#define MSL_INT3(n) \
    template <class T, int N> MSL_FN constexpr vec<T, N> n(vec<T, N> x, vec<T, N> y, vec<T, N> z) { \
        vec<T, N> r{}; \
        MSL_EACH(N, n(x.e[i], y.e[i], z.e[i])); \
        return r; \
    }

template <class T> static constexpr int bits_of = (int)sizeof(T) * 8;
template <class T> using unsigned_of = make_unsigned_t<T>;

MSL_INT absdiff(T x, T y) { return (T)(x > y ? (unsigned_of<T>)x - (unsigned_of<T>)y : (unsigned_of<T>)y - (unsigned_of<T>)x); }
MSL_INT2(absdiff)
MSL_INT addsat(T x, T y) {
    T r{};
    if (!__builtin_add_overflow(x, y, &r)) return r;
    return y < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
MSL_INT2(addsat)
MSL_INT subsat(T x, T y) {
    T r{};
    if (!__builtin_sub_overflow(x, y, &r)) return r;
    return is_unsigned_v<T> || y > 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
MSL_INT2(subsat)
MSL_INT clz(T x) { return x ? (T)(__builtin_clzll((unsigned_of<T>)x) - (64 - bits_of<T>)) : (T)bits_of<T>; }
MSL_INT1(clz)
MSL_INT ctz(T x) { return x ? (T)__builtin_ctzll((unsigned_of<T>)x) : (T)bits_of<T>; }
MSL_INT1(ctz)
MSL_INT popcount(T x) { return (T)__builtin_popcountll((unsigned_of<T>)x); }
MSL_INT1(popcount)
MSL_INT reverse_bits(T x) { return (T)(__builtin_bitreverse64((unsigned_of<T>)x) >> (64 - bits_of<T>)); }
MSL_INT1(reverse_bits)
MSL_INT rotate(T x, T n) {
    const unsigned_of<T> u = (unsigned_of<T>)x;
    const int k = (int)((unsigned_of<T>)n & (bits_of<T> - 1));
    return k ? (T)((unsigned_of<T>)(u << k) | (unsigned_of<T>)(u >> (bits_of<T> - k))) : x;
}
MSL_INT2(rotate)
template <class T, int N, class S, enable_if_t<is_arithmetic_v<S>, int> = 0> MSL_FN constexpr vec<T, N> rotate(vec<T, N> x, S n) {
    return rotate(x, vec<T, N>(n));
}
// `count` bits from `offset` on, sign-extended if T is signed.
MSL_INT extract_bits(T x, uint offset, uint count) {
    if (count == 0) return 0;
    const int left = bits_of<T> - (int)offset - (int)count;
    const unsigned_of<T> top = (unsigned_of<T>)((unsigned_of<T>)x << left);
    return (T)((T)top >> (bits_of<T> - (int)count));
}
template <class T, int N> MSL_FN constexpr vec<T, N> extract_bits(vec<T, N> x, uint offset, uint count) {
    vec<T, N> r{};
    MSL_EACH(N, extract_bits(x.e[i], offset, count));
    return r;
}
MSL_INT insert_bits(T base, T insert, uint offset, uint count) {
    if (count == 0) return base;
    const unsigned_of<T> ones = (unsigned_of<T>)(~(unsigned_of<T>)0) >> (bits_of<T> - (int)count);
    const unsigned_of<T> mask = (unsigned_of<T>)(ones << offset);
    return (T)(((unsigned_of<T>)base & ~mask) | ((unsigned_of<T>)((unsigned_of<T>)insert << offset) & mask));
}
template <class T, int N> MSL_FN constexpr vec<T, N> insert_bits(vec<T, N> base, vec<T, N> insert, uint offset, uint count) {
    vec<T, N> r{};
    MSL_EACH(N, insert_bits(base.e[i], insert.e[i], offset, count));
    return r;
}
// (x + y) / 2 without overflow, rounded down; rhadd rounds up.
MSL_INT hadd(T x, T y) { return (T)((x & y) + ((x ^ y) >> 1)); }
MSL_INT2(hadd)
MSL_INT rhadd(T x, T y) { return (T)((x | y) - ((x ^ y) >> 1)); }
MSL_INT2(rhadd)
MSL_INT mulhi(T x, T y) {
    if constexpr (sizeof(T) < 8) return (T)(((conditional_t<is_signed_v<T>, long, ulong>)x * y) >> bits_of<T>);
    else {
        // Four products of 32 bits; what a signed factor counts too much is taken off.
        const ulong a = (ulong)x, b = (ulong)y;
        const ulong al = a & 0xffffffffu, ah = a >> 32, bl = b & 0xffffffffu, bh = b >> 32;
        const ulong middle = ah * bl + ((al * bl) >> 32), low = (middle & 0xffffffffu) + al * bh;
        ulong high = ah * bh + (middle >> 32) + (low >> 32);
        if constexpr (is_signed_v<T>) high -= (x < 0 ? b : 0) + (y < 0 ? a : 0);
        return (T)high;
    }
}
MSL_INT2(mulhi)
MSL_INT madhi(T x, T y, T z) { return (T)((unsigned_of<T>)mulhi(x, y) + (unsigned_of<T>)z); }
MSL_INT3(madhi)
MSL_INT madsat(T x, T y, T z) {
    // The product may leave the range and the sum bring it back, so saturate once, at the end.
    const T high = mulhi(x, y), low = (T)((unsigned_of<T>)x * (unsigned_of<T>)y);
    T sum{};
    bool carry = false;
    if constexpr (is_unsigned_v<T>) {
        carry = __builtin_add_overflow(low, z, &sum);
        return high || carry ? numeric_limits<T>::max() : sum;
    } else {
        const unsigned_of<T> s = (unsigned_of<T>)((unsigned_of<T>)low + (unsigned_of<T>)z);
        carry = s < (unsigned_of<T>)low;
        const T top = (T)((unsigned_of<T>)high + (unsigned_of<T>)(z < 0 ? -1 : 0) + (unsigned_of<T>)carry);
        if (top > 0 || (top == 0 && (T)s < 0)) return numeric_limits<T>::max();
        if (top < -1 || (top == -1 && (T)s >= 0)) return numeric_limits<T>::min();
        return (T)s;
    }
}
MSL_INT3(madsat)
// Of 24 bits: the product of the low 24 bits of each.
MSL_FN constexpr int low24(int x) { return (int)((uint)x << 8) >> 8; }
MSL_FN constexpr uint low24(uint x) { return x & 0xffffffu; }
MSL_FN constexpr int mul24(int x, int y) { return (int)((uint)low24(x) * (uint)low24(y)); }
MSL_FN constexpr uint mul24(uint x, uint y) { return low24(x) * low24(y); }
MSL_INT2(mul24)
MSL_FN constexpr int mad24(int x, int y, int z) { return (int)((uint)mul24(x, y) + (uint)z); }
MSL_FN constexpr uint mad24(uint x, uint y, uint z) { return mul24(x, y) + z; }
MSL_INT3(mad24)
#undef MSL_INT
#undef MSL_INT1
#undef MSL_INT2
#undef MSL_INT3

// Packing: unorm maps [0, 1] to [0, max], snorm [-1, 1] to [-max, max], to the nearest value. Component x is lowest.
MSL_FN uint to_unorm(float x, float max) { return (uint)msl_prim::rint(msl_prim::saturate(x) * max); }
MSL_FN int to_snorm(float x, float max) { return (int)msl_prim::rint(msl_prim::fmin(msl_prim::fmax(x, -1.0f), 1.0f) * max); }
MSL_FN float from_snorm(int x, float max) { return msl_prim::fmax((float)x / max, -1.0f); }
MSL_FN float srgb_encode(float x) {
    x = msl_prim::saturate(x);
    return x <= 0.0031308f ? 12.92f * x : 1.055f * msl_prim::pow(x, 1.0f / 2.4f) - 0.055f;
}
MSL_FN float srgb_decode(float x) { return x <= 0.04045f ? x / 12.92f : msl_prim::pow((x + 0.055f) / 1.055f, 2.4f); }

MSL_FN uint pack_float_to_unorm4x8(float4 v) {
    return to_unorm(v.x, 255) | to_unorm(v.y, 255) << 8 | to_unorm(v.z, 255) << 16 | to_unorm(v.w, 255) << 24;
}
MSL_FN uint pack_float_to_snorm4x8(float4 v) {
    return (to_snorm(v.x, 127) & 255u) | (to_snorm(v.y, 127) & 255u) << 8 | (to_snorm(v.z, 127) & 255u) << 16 |
           (to_snorm(v.w, 127) & 255u) << 24;
}
MSL_FN uint pack_float_to_srgb_unorm4x8(float4 v) {
    return pack_float_to_unorm4x8(float4(srgb_encode(v.x), srgb_encode(v.y), srgb_encode(v.z), v.w));
}
MSL_FN uint pack_float_to_unorm2x16(float2 v) { return to_unorm(v.x, 65535) | to_unorm(v.y, 65535) << 16; }
MSL_FN uint pack_float_to_snorm2x16(float2 v) { return (to_snorm(v.x, 32767) & 0xffffu) | (to_snorm(v.y, 32767) & 0xffffu) << 16; }
MSL_FN uint pack_float_to_unorm10a2(float4 v) {
    return to_unorm(v.x, 1023) | to_unorm(v.y, 1023) << 10 | to_unorm(v.z, 1023) << 20 | to_unorm(v.w, 3) << 30;
}
MSL_FN ushort pack_float_to_unorm565(float3 v) {
    return (ushort)(to_unorm(v.x, 31) << 11 | to_unorm(v.y, 63) << 5 | to_unorm(v.z, 31));
}
MSL_FN float4 unpack_unorm4x8_to_float(uint x) { return float4(x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24) / 255.0f; }
MSL_FN float4 unpack_snorm4x8_to_float(uint x) {
    return float4(from_snorm((signed char)x, 127), from_snorm((signed char)(x >> 8), 127), from_snorm((signed char)(x >> 16), 127),
                  from_snorm((signed char)(x >> 24), 127));
}
MSL_FN float4 unpack_unorm4x8_srgb_to_float(uint x) {
    float4 v = unpack_unorm4x8_to_float(x);
    return float4(srgb_decode(v.x), srgb_decode(v.y), srgb_decode(v.z), v.w);
}
MSL_FN float2 unpack_unorm2x16_to_float(uint x) { return float2(x & 0xffff, x >> 16) / 65535.0f; }
MSL_FN float2 unpack_snorm2x16_to_float(uint x) { return float2(from_snorm((short)x, 32767), from_snorm((short)(x >> 16), 32767)); }
MSL_FN float4 unpack_unorm10a2_to_float(uint x) {
    return float4(x & 1023, x >> 10 & 1023, x >> 20 & 1023, x >> 30) / float4(1023.0f, 1023.0f, 1023.0f, 3.0f);
}
MSL_FN float3 unpack_unorm565_to_float(ushort x) { return float3(x >> 11, x >> 5 & 63, x & 31) / float3(31.0f, 63.0f, 31.0f); }
#define MSL_HALF_PACK(f, V) MSL_FN auto pack_half_to_##f(half##V v) { return pack_float_to_##f(float##V(v)); }
#define MSL_HALF_UNPACK(f, V, I) MSL_FN half##V unpack_##f##_to_half(I x) { return half##V(unpack_##f##_to_float(x)); }
MSL_HALF_PACK(unorm4x8, 4) MSL_HALF_PACK(snorm4x8, 4) MSL_HALF_PACK(srgb_unorm4x8, 4) MSL_HALF_PACK(unorm2x16, 2)
MSL_HALF_PACK(snorm2x16, 2) MSL_HALF_PACK(unorm10a2, 4) MSL_HALF_PACK(unorm565, 3)
MSL_HALF_UNPACK(unorm4x8, 4, uint) MSL_HALF_UNPACK(snorm4x8, 4, uint) MSL_HALF_UNPACK(unorm4x8_srgb, 4, uint)
MSL_HALF_UNPACK(unorm2x16, 2, uint) MSL_HALF_UNPACK(snorm2x16, 2, uint) MSL_HALF_UNPACK(unorm10a2, 4, uint)
MSL_HALF_UNPACK(unorm565, 3, ushort)
#undef MSL_HALF_PACK
#undef MSL_HALF_UNPACK

// fast:: and precise:: name the same functions here: a CPU has no faster, less exact ones to offer. One by one, so that an overload
// which a source adds to them stands beside these.
#define MSL_SAME_FUNCTIONS \
    using metal::abs; using metal::acos; using metal::acosh; using metal::asin; using metal::asinh; using metal::atan; \
    using metal::atan2; using metal::atanh; using metal::ceil; using metal::clamp; using metal::copysign; \
    using metal::cos; using metal::cosh; using metal::cospi; using metal::divide; using metal::exp; \
    using metal::exp10; using metal::exp2; using metal::fabs; using metal::fdim; using metal::floor; using metal::fma; \
    using metal::fmax; using metal::fmax3; using metal::fmedian3; using metal::fmin; using metal::fmin3; \
    using metal::fmod; using metal::fract; using metal::frexp; using metal::ilogb; using metal::ldexp; \
    using metal::log; using metal::log10; using metal::log2; using metal::max; using metal::max3; \
    using metal::median3; using metal::min; using metal::min3; using metal::mix; using metal::modf; \
    using metal::nextafter; using metal::pow; using metal::powr; using metal::rint; using metal::round; \
    using metal::rsqrt; using metal::saturate; using metal::sign; using metal::sin; using metal::sincos; \
    using metal::sinh; using metal::sinpi; using metal::smoothstep; using metal::sqrt; using metal::step; \
    using metal::tan; using metal::tanh; using metal::tanpi; using metal::trunc; using metal::length; \
    using metal::length_squared; using metal::distance; using metal::distance_squared; using metal::normalize; \
    using metal::dot; using metal::cross; using metal::isfinite; using metal::isinf; using metal::isnan; \
    using metal::isnormal; using metal::isordered; using metal::isunordered; using metal::signbit;
namespace fast { MSL_SAME_FUNCTIONS }
namespace precise { MSL_SAME_FUNCTIONS }
#undef MSL_SAME_FUNCTIONS

} // namespace metal
