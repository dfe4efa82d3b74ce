// The scalar float functions that everything in msl_math.h is made of: libm on a CPU, approximate instructions and short
// polynomials on an NVIDIA GPU (no libdevice; the accuracy is that of Metal's fast math).
#pragma once
#include "msl_base.h"

namespace msl_prim {

#if defined(MSL_LINT)
#define MSL_1(n) float n(float);
#define MSL_2(n) float n(float, float);
MSL_1(fabs) MSL_1(floor) MSL_1(ceil) MSL_1(trunc) MSL_1(rint) MSL_1(sqrt) MSL_1(rsqrt) MSL_1(exp) MSL_1(exp2) MSL_1(exp10) MSL_1(log)
MSL_1(log2) MSL_1(log10) MSL_1(sin) MSL_1(cos) MSL_1(tan) MSL_1(sinpi) MSL_1(cospi) MSL_1(tanpi) MSL_1(tanh) MSL_1(sinh) MSL_1(cosh)
MSL_1(atan) MSL_1(asin) MSL_1(acos) MSL_1(asinh) MSL_1(acosh) MSL_1(atanh) MSL_1(round) MSL_1(fract) MSL_1(sign) MSL_1(saturate)
MSL_2(copysign) MSL_2(divide) MSL_2(fmin) MSL_2(fmax) MSL_2(atan2) MSL_2(fmod) MSL_2(pow) MSL_2(powr) MSL_2(fdim) MSL_2(step)
MSL_2(nextafter)
#undef MSL_1
#undef MSL_2
float fma(float, float, float);
half fma(half, half, half);
float fma_bfloat(float, float, float);
float ldexp(float, int);
int ilogb(float);
float frexp(float, int&);
#else

MSL_FN float fabs(float x) { return __builtin_fabsf(x); }
MSL_FN float floor(float x) { return __builtin_floorf(x); }
MSL_FN float ceil(float x) { return __builtin_ceilf(x); }
MSL_FN float trunc(float x) { return __builtin_truncf(x); }
MSL_FN float rint(float x) { return __builtin_rintf(x); }
MSL_FN float copysign(float x, float y) { return __builtin_copysignf(x, y); }
MSL_FN float divide(float x, float y) { return x / y; }

#if defined(__NVPTX__)
MSL_FN float sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
MSL_FN float rsqrt(float x) { return __nvvm_rsqrt_approx_f(x); }
MSL_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_FN half fma(half a, half b, half c) { return __builtin_fmaf16(a, b, c); }
MSL_FN float fma_bfloat(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_FN float fmin(float a, float b) { return __nvvm_fmin_f(a, b); }
MSL_FN float fmax(float a, float b) { return __nvvm_fmax_f(a, b); }
MSL_FN float round(float x) { return copysign(floor(fabs(x) + 0.5f), x); }
MSL_FN float exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
// x·log2(e) in two parts: one alone loses |x|·2⁻²⁴ of the result.
MSL_FN float exp(float x) {
    float t = x * 1.44269502f;
    float low = fma(x, 1.44269502f, -t) + x * 1.92596303e-8f;
    float r = __nvvm_ex2_approx_ftz_f(t);
    return t > -126.0f && t < 128.0f ? fma(r, low * 0.69314718f, r) : r;
}
MSL_FN float exp10(float x) {
    float t = x * 3.32192802f;
    float low = fma(x, 3.32192802f, -t) + x * 7.05954e-8f;
    float r = __nvvm_ex2_approx_ftz_f(t);
    return t > -126.0f && t < 128.0f ? fma(r, low * 0.69314718f, r) : r;
}
MSL_FN float log2(float x) { return __nvvm_lg2_approx_f(x); }
MSL_FN float log(float x) { return __nvvm_lg2_approx_f(x) * 0.69314718055994530942f; }
MSL_FN float log10(float x) { return __nvvm_lg2_approx_f(x) * 0.30102999566398119521f; }
// 2π in three parts, each product exact for |x| < 2¹⁵ or so.
MSL_FN float reduce(float x) {
    float k = rint(x * 0.15915494309189533577f);
    x = fma(-k, 6.28125f, x);
    x = fma(-k, 1.93500518798828125e-3f, x);
    return fma(-k, 3.0199159819567e-7f, x);
}
MSL_FN float sin(float x) { return __nvvm_sin_approx_f(reduce(x)); }
MSL_FN float cos(float x) { return __nvvm_cos_approx_f(reduce(x)); }
MSL_FN float tan(float x) {
    x = reduce(x);
    return __nvvm_sin_approx_f(x) / __nvvm_cos_approx_f(x);
}
MSL_FN float half_turns(float x) { return (x - 2.0f * rint(x * 0.5f)) * 3.14159265358979323846f; }
MSL_FN float sinpi(float x) { return __nvvm_sin_approx_f(half_turns(x)); }
MSL_FN float cospi(float x) { return __nvvm_cos_approx_f(half_turns(x)); }
MSL_FN float tanpi(float x) { return sinpi(x) / cospi(x); }
MSL_FN float tanh(float x) {
    float a = fabs(x), t = exp(-2 * a), s = x * x;
    float r = a < 0.25f ? a * fma(s, fma(s, fma(s, -0.05396825f, 0.13333333f), -0.33333333f), 1.0f) : (1 - t) / (1 + t);
    return copysign(r, x);
}
MSL_FN float sinh(float x) {
    float a = fabs(x), s = x * x;
    float r = a < 0.5f ? a * fma(s, fma(s, fma(s, 1.984127e-4f, 8.333333e-3f), 0.16666667f), 1.0f) : 0.5f * (exp(a) - exp(-a));
    return copysign(r, x);
}
MSL_FN float cosh(float x) { return 0.5f * (exp(x) + exp(-x)); }
// Interpolates atan(√s)/√s at the Chebyshev points of [0, 1].
MSL_FN float atan(float x) {
    float a = fabs(x);
    float z = a > 1 ? 1 / a : a, s = z * z;
    float p = 0.00276628350f;
    p = fma(p, s, -0.0157312491f), p = fma(p, s, 0.0421376236f), p = fma(p, s, -0.0745685483f), p = fma(p, s, 0.106183706f);
    p = fma(p, s, -0.141977978f), p = fma(p, s, 0.199918720f), p = fma(p, s, -0.333330367f), p = fma(p, s, 0.999999982f) * z;
    return copysign(a > 1 ? 1.57079632679489661923f - p : p, x);
}
MSL_FN float atan2(float y, float x) {
    const float pi = 3.14159265358979323846f;
    if (x == 0 && y == 0) return copysign(__builtin_signbit(x) ? pi : 0.0f, y);
    if (__builtin_isinf(x) && __builtin_isinf(y)) return copysign(x > 0 ? 0.25f * pi : 0.75f * pi, y);
    float r = atan(fabs(y) / fabs(x));
    return copysign(__builtin_signbit(x) ? pi - r : r, y);
}
MSL_FN float asin(float x) { return atan2(x, sqrt((1 - x) * (1 + x))); }
MSL_FN float acos(float x) { return atan2(sqrt((1 - x) * (1 + x)), x); }
MSL_FN float asinh(float x) {
    float a = fabs(x), s = x * x;
    float r = a < 0.1f ? a * fma(s, fma(s, 0.075f, -0.16666667f), 1.0f) : log(a + sqrt(fma(a, a, 1.0f)));
    return copysign(r, x);
}
MSL_FN float acosh(float x) { return log(x + sqrt((x - 1) * (x + 1))); }
MSL_FN float atanh(float x) {
    float s = x * x;
    return fabs(x) < 0.1f ? x * fma(s, fma(s, fma(s, 0.14285714f, 0.2f), 0.33333333f), 1.0f) : 0.5f * log((1 + x) / (1 - x));
}
MSL_FN float fmod(float x, float y) { return fma(-y, trunc(x / y), x); }
MSL_FN float pow(float x, float y) {
    if (x == 1.0f || y == 0.0f) return 1.0f;
    bool whole = y == trunc(y), odd = whole && fabs(y) < 16777216.0f && ((int)y & 1);
    float r = exp2(y * log2(fabs(x)));
    if (x < 0 && !whole) return __builtin_nanf("");
    return __builtin_signbit(x) && odd ? -r : r;
}
MSL_FN float scale(float x, int k) { return x * __builtin_bit_cast(float, (uint)(k + 127) << 23); }
MSL_FN float ldexp(float x, int k) {
    k = k < -300 ? -300 : k > 300 ? 300 : k;
    int a = k / 3, b = (k - a) / 2;
    return scale(scale(scale(x, a), b), k - a - b);
}
MSL_FN float nextafter(float x, float y) {
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    if (x == 0) return copysign(__builtin_bit_cast(float, 1u), y);
    uint u = __builtin_bit_cast(uint, x);
    return __builtin_bit_cast(float, (x < y) == (x > 0) ? u + 1 : u - 1);
}
#else
#define MSL_LIBM(n) MSL_FN float n(float x) { return __builtin_##n##f(x); }
MSL_LIBM(sqrt) MSL_LIBM(exp) MSL_LIBM(exp2) MSL_LIBM(log) MSL_LIBM(log2) MSL_LIBM(log10) MSL_LIBM(sin) MSL_LIBM(cos)
MSL_LIBM(tan) MSL_LIBM(tanh) MSL_LIBM(sinh) MSL_LIBM(cosh) MSL_LIBM(atan) MSL_LIBM(asin) MSL_LIBM(acos) MSL_LIBM(asinh)
MSL_LIBM(acosh) MSL_LIBM(atanh) MSL_LIBM(round)
#undef MSL_LIBM
MSL_FN float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MSL_FN float exp10(float x) { return (float)__builtin_exp2((double)x * (double)3.321928094887362347870L); }
// Half turns, reduced before they meet π: sinpi(1) is exactly 0.
MSL_FN double turns(float x) { return (double)(x - 2.0f * __builtin_rintf(x * 0.5f)); }
MSL_FN float sinpi(float x) {
    double r = turns(x);
    if (r == 1 || r == -1) return 0;
    return (float)__builtin_sin(r * (double)3.141592653589793238463L);
}
MSL_FN float cospi(float x) {
    double r = turns(x);
    if (r + r == 1 || r + r == -1) return 0;
    return (float)__builtin_cos(r * (double)3.141592653589793238463L);
}
MSL_FN float tanpi(float x) { return sinpi(x) / cospi(x); }
MSL_FN float pow(float x, float y) { return __builtin_powf(x, y); }
MSL_FN float atan2(float y, float x) { return __builtin_atan2f(y, x); }
MSL_FN float fmod(float x, float y) { return __builtin_fmodf(x, y); }
MSL_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// A double holds every product of halves; one rounding at the end.
MSL_FN half fma(half a, half b, half c) { return (half)((double)a * (double)b + (double)c); }
MSL_FN double fma_bfloat(float a, float b, float c) { return (double)a * (double)b + (double)c; }
MSL_FN float fmin(float a, float b) { return __builtin_fminf(a, b); }
MSL_FN float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
MSL_FN float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }
MSL_FN float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
#endif

MSL_FN float fract(float x) { return __builtin_fminf(x - floor(x), 0x1.fffffep-1f); }
MSL_FN float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f; }
MSL_FN float saturate(float x) { return fmin(fmax(x, 0.0f), 1.0f); }
MSL_FN float powr(float x, float y) { return pow(x, y); }
MSL_FN float fdim(float x, float y) { return x > y ? x - y : x != x || y != y ? __builtin_nanf("") : 0.0f; }
MSL_FN float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }
MSL_FN int ilogb(float x) {
    if (x == 0) return FP_ILOGB0;
    if (x != x || __builtin_isinf(x)) return FP_ILOGBNAN;
    uint u = __builtin_bit_cast(uint, x) & 0x7fffffffu;
    return u >= 0x800000u ? (int)(u >> 23) - 127 : -118 - __builtin_clz(u);
}
// x = m·2^e with m in [½, 1).
MSL_FN float frexp(float x, int& e) {
    if (x == 0 || x != x || __builtin_isinf(x)) return e = 0, x;
    e = ilogb(x) + 1;
    return ldexp(x, -e);
}
#endif

} // namespace msl_prim
