// Matrices in columns, metal::matrix<T, Columns, Rows>; arrays; numeric_limits.
#pragma once
#include "msl_vec.h"

namespace metal {

template <class T, int C, int R> struct matrix {
    typedef vec<T, R> column_type;
    column_type columns[C];

    matrix() = default;
    // s on the diagonal, zero elsewhere.
    template <class S, enable_if_t<is_arithmetic_v<S>, int> = 0> MSL_FN constexpr explicit matrix(S s) : columns{} {
        for (int i = 0; i < C; i++)
            for (int j = 0; j < R; j++) columns[i].e[j] = i == j ? scalar_cast<T>(s) : T(0);
    }
    template <class... A, enable_if_t<sizeof...(A) == C && (is_same_v<A, column_type> && ...), int> = 0>
    MSL_FN constexpr matrix(const A&... a) : columns{a...} {}
    // Column by column.
    template <class... A, enable_if_t<sizeof...(A) == C * R && (is_arithmetic_v<A> && ...), int> = 0>
    MSL_FN constexpr matrix(A... a) : columns{} {
        const T all[] = {scalar_cast<T>(a)...};
        for (int i = 0; i < C; i++)
            for (int j = 0; j < R; j++) columns[i].e[j] = all[i * R + j];
    }
    template <class U, enable_if_t<!is_same_v<U, T>, int> = 0> MSL_FN constexpr explicit matrix(const matrix<U, C, R>& o) : columns{} {
        for (int i = 0; i < C; i++) columns[i] = column_type(o.columns[i]);
    }
    MSL_FN constexpr column_type& operator[](size_t i) { return columns[i]; }
    MSL_FN constexpr const column_type& operator[](size_t i) const { return columns[i]; }

    MSL_FN friend constexpr matrix operator-(const matrix& a) {
        matrix r{};
        for (int i = 0; i < C; i++) r.columns[i] = -a.columns[i];
        return r;
    }
    MSL_FN friend constexpr matrix operator+(const matrix& a, const matrix& b) {
        matrix r{};
        for (int i = 0; i < C; i++) r.columns[i] = a.columns[i] + b.columns[i];
        return r;
    }
    MSL_FN friend constexpr matrix operator-(const matrix& a, const matrix& b) {
        matrix r{};
        for (int i = 0; i < C; i++) r.columns[i] = a.columns[i] - b.columns[i];
        return r;
    }
    MSL_FN friend constexpr matrix operator*(const matrix& a, T s) {
        matrix r{};
        for (int i = 0; i < C; i++) r.columns[i] = a.columns[i] * s;
        return r;
    }
    MSL_FN friend constexpr matrix operator*(T s, const matrix& a) { return a * s; }
    MSL_FN friend constexpr vec<T, R> operator*(const matrix& a, const vec<T, C>& v) {
        vec<T, R> r = a.columns[0] * v.e[0];
        for (int i = 1; i < C; i++) r += a.columns[i] * v.e[i];
        return r;
    }
    MSL_FN friend constexpr matrix& operator+=(matrix& a, const matrix& b) { return a = a + b; }
    MSL_FN friend constexpr matrix& operator-=(matrix& a, const matrix& b) { return a = a - b; }
    MSL_FN friend constexpr matrix& operator*=(matrix& a, T s) { return a = a * s; }
    MSL_FN friend constexpr bool operator==(const matrix& a, const matrix& b) {
        for (int i = 0; i < C; i++)
            for (int j = 0; j < R; j++)
                if (!(a.columns[i].e[j] == b.columns[i].e[j])) return false;
        return true;
    }
    MSL_FN friend constexpr bool operator!=(const matrix& a, const matrix& b) { return !(a == b); }
};

template <class T, int C, int R> MSL_FN constexpr vec<T, C> operator*(const vec<T, R>& v, const matrix<T, C, R>& a) {
    vec<T, C> r{};
    for (int i = 0; i < C; i++) {
        T s = v.e[0] * a.columns[i].e[0];
        for (int j = 1; j < R; j++) s += v.e[j] * a.columns[i].e[j];
        r.e[i] = s;
    }
    return r;
}
// [K columns, R rows] * [C columns, K rows] = [C columns, R rows].
template <class T, int K, int R, int C> MSL_FN constexpr matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
    matrix<T, C, R> r{};
    for (int i = 0; i < C; i++) r.columns[i] = a * b.columns[i];
    return r;
}
template <class T, int N> MSL_FN constexpr matrix<T, N, N>& operator*=(matrix<T, N, N>& a, const matrix<T, N, N>& b) {
    return a = a * b;
}

template <class T, int C, int R> MSL_FN constexpr matrix<T, R, C> transpose(const matrix<T, C, R>& a) {
    matrix<T, R, C> r{};
    for (int i = 0; i < C; i++)
        for (int j = 0; j < R; j++) r.columns[j].e[i] = a.columns[i].e[j];
    return r;
}
template <class T> MSL_FN constexpr T determinant(const matrix<T, 2, 2>& m) {
    return m[0].e[0] * m[1].e[1] - m[0].e[1] * m[1].e[0];
}
template <class T, int N> MSL_FN constexpr T determinant(const matrix<T, N, N>& m) {
    T sum = 0;
    for (int skip = 0; skip < N; skip++) {
        matrix<T, N - 1, N - 1> minor{};
        for (int i = 1; i < N; i++)
            for (int j = 0, k = 0; j < N; j++)
                if (j != skip) minor.columns[i - 1].e[k++] = m[i].e[j];
        T term = m[0].e[skip] * determinant(minor);
        sum += skip % 2 ? -term : term;
    }
    return sum;
}

template <class T, size_t N> struct array {
    T e[N];
    MSL_FN constexpr T& operator[](size_t i) { return e[i]; }
    MSL_FN constexpr const T& operator[](size_t i) const { return e[i]; }
    MSL_FN constexpr T* data() { return e; }
    MSL_FN constexpr const T* data() const { return e; }
    MSL_FN constexpr T* begin() { return e; }
    MSL_FN constexpr const T* begin() const { return e; }
    MSL_FN constexpr T* end() { return e + N; }
    MSL_FN constexpr const T* end() const { return e + N; }
    static constexpr size_t size() { return N; }
    static constexpr bool empty() { return N == 0; }
};
template <class T> class array_ref {
    const T* first;
    size_t count;

public:
    MSL_FN constexpr array_ref(const T* p, size_t n) : first(p), count(n) {}
    template <size_t N> MSL_FN constexpr array_ref(const array<T, N>& a) : first(a.e), count(N) {}
    template <size_t N> MSL_FN constexpr array_ref(const T (&a)[N]) : first(a), count(N) {}
    MSL_FN constexpr const T& operator[](size_t i) const { return first[i]; }
    MSL_FN constexpr size_t size() const { return count; }
    MSL_FN constexpr const T* data() const { return first; }
};

// Sources name _numeric_limits_impl and _fp_encoding_traits too, to add types of their own.
template <class T> struct _numeric_limits_impl {
    static constexpr bool is_specialized = false;
};
template <class T> struct numeric_limits : _numeric_limits_impl<T> {};
template <class T> struct numeric_limits<const T> : numeric_limits<T> {};
#define MSL_INTEGER_LIMITS(T, MIN, MAX, DIGITS) \
    template <> struct _numeric_limits_impl<T> { \
        static constexpr bool is_specialized = true, is_signed = (MIN) != 0, is_integer = true, is_exact = true; \
        static constexpr bool has_infinity = false, has_quiet_NaN = false, has_signaling_NaN = false, has_denorm = false; \
        static constexpr bool is_bounded = true, is_modulo = (MIN) == 0, is_iec559 = false; \
        static constexpr int digits = DIGITS, digits10 = DIGITS * 3 / 10, max_digits10 = 0, radix = 2; \
        static constexpr T min() { return (T)(MIN); } \
        static constexpr T lowest() { return (T)(MIN); } \
        static constexpr T max() { return (T)(MAX); } \
        static constexpr T epsilon() { return 0; } \
        static constexpr T infinity() { return 0; } \
        static constexpr T quiet_NaN() { return 0; } \
        static constexpr T denorm_min() { return 0; } \
    };
MSL_INTEGER_LIMITS(bool, 0, 1, 1)
MSL_INTEGER_LIMITS(char, -128, 127, 7)
MSL_INTEGER_LIMITS(signed char, -128, 127, 7)
MSL_INTEGER_LIMITS(uchar, 0, 255, 8)
MSL_INTEGER_LIMITS(short, -32768, 32767, 15)
MSL_INTEGER_LIMITS(ushort, 0, 65535, 16)
MSL_INTEGER_LIMITS(int, INT_MIN, INT_MAX, 31)
MSL_INTEGER_LIMITS(uint, 0, UINT_MAX, 32)
MSL_INTEGER_LIMITS(long, LONG_MIN, LONG_MAX, 63)
MSL_INTEGER_LIMITS(ulong, 0, ULONG_MAX, 64)
#define MSL_FLOAT_LIMITS(T, MIN, MAX, EPS, DENORM, DIGITS, EXP) \
    template <> struct _numeric_limits_impl<T> { \
        static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false; \
        static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true, has_denorm = true; \
        static constexpr bool is_bounded = true, is_modulo = false, is_iec559 = true; \
        static constexpr int digits = DIGITS, digits10 = (DIGITS - 1) * 3 / 10, max_digits10 = DIGITS * 3 / 10 + 2, radix = 2; \
        static constexpr int max_exponent = EXP, min_exponent = 3 - EXP; \
        static constexpr T min() { return T(MIN); } \
        static constexpr T lowest() { return -T(MAX); } \
        static constexpr T max() { return T(MAX); } \
        static constexpr T epsilon() { return T(EPS); } \
        static constexpr T round_error() { return T(0.5f); } \
        static constexpr T infinity() { return T(__builtin_inff()); } \
        static constexpr T quiet_NaN() { return T(__builtin_nanf("")); } \
        static constexpr T signaling_NaN() { return T(__builtin_nanf("")); } \
        static constexpr T denorm_min() { return T(DENORM); } \
    };
MSL_FLOAT_LIMITS(float, FLT_MIN, FLT_MAX, FLT_EPSILON, FLT_TRUE_MIN, 24, 128)
MSL_FLOAT_LIMITS(half, 6.103515625e-05f, 65504.0f, 0.0009765625f, 5.9604644775390625e-8f, 11, 16)
MSL_FLOAT_LIMITS(bfloat, 1.17549435e-38f, 3.38953139e38f, 0.0078125f, 9.18354961579912e-41f, 8, 128)
#undef MSL_INTEGER_LIMITS
#undef MSL_FLOAT_LIMITS
template <class T> struct _fp_encoding_traits;
template <> struct _fp_encoding_traits<float> {
    static constexpr uint sign_mask = 0x80000000u, exp_mask = 0x7f800000u, inf_mask = 0x7f800000u;
};
template <> struct _fp_encoding_traits<half> { static constexpr ushort sign_mask = 0x8000, exp_mask = 0x7c00, inf_mask = 0x7c00; };
template <> struct _fp_encoding_traits<bfloat> { static constexpr ushort sign_mask = 0x8000, exp_mask = 0x7f80, inf_mask = 0x7f80; };

} // namespace metal

#define MSL_MATRIX(T, C, R) \
    typedef metal::matrix<T, C, R> T##C##x##R; \
    namespace metal { using ::T##C##x##R; }
#define MSL_MATRICES(T) \
    MSL_MATRIX(T, 2, 2) MSL_MATRIX(T, 2, 3) MSL_MATRIX(T, 2, 4) MSL_MATRIX(T, 3, 2) MSL_MATRIX(T, 3, 3) MSL_MATRIX(T, 3, 4) \
    MSL_MATRIX(T, 4, 2) MSL_MATRIX(T, 4, 3) MSL_MATRIX(T, 4, 4)
MSL_MATRICES(float) MSL_MATRICES(half)
#undef MSL_MATRIX
#undef MSL_MATRICES
