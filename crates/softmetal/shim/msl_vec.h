// Vectors: metal::vec<T, N> and metal::packed_vec<T, N>.
//
// A class, not clang's ext_vector_type: there `float4(a, b, c, d)` is an error and `(float4)int4_value` copies bits, where Metal
// converts each component.
#pragma once
#include "msl_bfloat.h"
#include "msl_swizzles.h"

namespace metal {

template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;

template <class T> struct vec_elements : integral_constant<int, 0> {};
template <class T, int N> struct vec_elements<vec<T, N>> : integral_constant<int, N> {};
template <class T, int N> struct vec_elements<packed_vec<T, N>> : integral_constant<int, N> {};
template <class T> struct is_vec : false_type {};
template <class T, int N> struct is_vec<vec<T, N>> : true_type {};
template <class T> struct make_scalar { using type = T; };
template <class T, int N> struct make_scalar<vec<T, N>> { using type = T; };
template <class T, int N> struct make_scalar<packed_vec<T, N>> { using type = T; };
template <class T> using make_scalar_t = typename make_scalar<T>::type;
// Components that a constructor argument supplies.
template <class A> struct components : integral_constant<int, is_arithmetic_v<A> || __is_enum(A) ? 1 : vec_elements<A>::value> {};

// Converts a scalar as a C++ cast does.
template <class T, class U> MSL_FN constexpr T scalar_cast(U u) { return (T)u; }

#define MSL_ALL2(f, ...) f(0, __VA_ARGS__), f(1, __VA_ARGS__)
#define MSL_ALL3(f, ...) MSL_ALL2(f, __VA_ARGS__), f(2, __VA_ARGS__)
#define MSL_ALL4(f, ...) MSL_ALL3(f, __VA_ARGS__), f(3, __VA_ARGS__)
#define MSL_BINARY(i, T, op) (T)(a.e[i] op b.e[i])
#define MSL_UNARY(i, T, op) (T)(op a.e[i])
#define MSL_COMPARE(i, op) (bool)(a.e[i] op b.e[i])
#define MSL_CAST(i, T, o) (T)(o).e[i]
#define MSL_SPLAT(i, s) s

// bool, but not before T is known: vec<bool, N> is not complete yet.
template <class T> struct bool_of { using type = bool; };

// The operators of vec<T, N>. A base of the packed type too: its operands then convert, and the results are vectors.
#define MSL_OP(N, op) \
    MSL_FN friend constexpr vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) { \
        return vec<T, N>(MSL_ALL##N(MSL_BINARY, T, op)); \
    } \
    MSL_FN friend constexpr vec<T, N>& operator op##=(vec<T, N>& a, const vec<T, N>& b) { \
        return a = vec<T, N>(MSL_ALL##N(MSL_BINARY, T, op)); \
    } \
    MSL_FN friend constexpr packed_vec<T, N>& operator op##=(packed_vec<T, N>& a, const vec<T, N>& b) { \
        return a = vec<T, N>(MSL_ALL##N(MSL_BINARY, T, op)); \
    }
#define MSL_CMP(N, op) \
    MSL_FN friend constexpr vec<B, N> operator op(const vec<T, N>& a, const vec<T, N>& b) { \
        return vec<B, N>(MSL_ALL##N(MSL_COMPARE, op)); \
    }
#define MSL_OPERATORS(N) \
    template <class T> struct vec_operators<T, N> { \
        typedef typename bool_of<T>::type B; \
        MSL_FN friend constexpr vec<T, N> operator+(const vec<T, N>& a) { return a; } \
        MSL_FN friend constexpr vec<T, N> operator-(const vec<T, N>& a) { return vec<T, N>(MSL_ALL##N(MSL_UNARY, T, -)); } \
        MSL_FN friend constexpr vec<T, N> operator~(const vec<T, N>& a) { return vec<T, N>(MSL_ALL##N(MSL_UNARY, T, ~)); } \
        MSL_FN friend constexpr vec<B, N> operator!(const vec<T, N>& a) { \
            return vec<B, N>(MSL_ALL##N(MSL_UNARY, bool, !)); \
        } \
        MSL_FN friend constexpr vec<T, N>& operator++(vec<T, N>& a) { return a += vec<T, N>(T(1)); } \
        MSL_FN friend constexpr vec<T, N>& operator--(vec<T, N>& a) { return a -= vec<T, N>(T(1)); } \
        MSL_FN friend constexpr vec<T, N> operator++(vec<T, N>& a, int) { \
            vec<T, N> old = a; \
            a += vec<T, N>(T(1)); \
            return old; \
        } \
        MSL_FN friend constexpr vec<T, N> operator--(vec<T, N>& a, int) { \
            vec<T, N> old = a; \
            a -= vec<T, N>(T(1)); \
            return old; \
        } \
        MSL_OP(N, +) MSL_OP(N, -) MSL_OP(N, *) MSL_OP(N, /) MSL_OP(N, %) \
        MSL_OP(N, &) MSL_OP(N, |) MSL_OP(N, ^) MSL_OP(N, <<) MSL_OP(N, >>) \
        MSL_CMP(N, ==) MSL_CMP(N, !=) MSL_CMP(N, <) MSL_CMP(N, <=) MSL_CMP(N, >) MSL_CMP(N, >=) MSL_CMP(N, &&) MSL_CMP(N, ||) \
    };
template <class T, int N> struct vec_operators;
MSL_OPERATORS(2) MSL_OPERATORS(3) MSL_OPERATORS(4)

// Swizzles.
#define MSL_PROPERTY_R(M, n, m, g) __declspec(property(get = g)) vec<T, M> n, m;
#define MSL_PROPERTY_W(M, n, m, g, s) __declspec(property(get = g, put = s)) vec<T, M> n, m;
#if defined(MSL_LINT)
// Vectors in `constant` memory have swizzles too.
#define MSL_GET(M, name, ...) \
    vec<T, M> name() const; \
    vec<T, M> name() const __constant;
#else
#define MSL_GET(M, name, ...) MSL_FN constexpr vec<T, M> name() const { return vec<T, M>(__VA_ARGS__); }
#endif
#define MSL_R2(n, m, i, j) \
    MSL_GET(2, get_##i##j, e[i], e[j]) \
    MSL_PROPERTY_R(2, n, m, get_##i##j)
#define MSL_R3(n, m, i, j, k) \
    MSL_GET(3, get_##i##j##k, e[i], e[j], e[k]) \
    MSL_PROPERTY_R(3, n, m, get_##i##j##k)
#define MSL_R4(n, m, i, j, k, l) \
    MSL_GET(4, get_##i##j##k##l, e[i], e[j], e[k], e[l]) \
    MSL_PROPERTY_R(4, n, m, get_##i##j##k##l)
#define MSL_W2(n, m, i, j) \
    MSL_GET(2, get_##i##j, e[i], e[j]) \
    MSL_FN constexpr void put_##i##j(vec<T, 2> v) { e[i] = v.e[0], e[j] = v.e[1]; } \
    MSL_PROPERTY_W(2, n, m, get_##i##j, put_##i##j)
#define MSL_W3(n, m, i, j, k) \
    MSL_GET(3, get_##i##j##k, e[i], e[j], e[k]) \
    MSL_FN constexpr void put_##i##j##k(vec<T, 3> v) { e[i] = v.e[0], e[j] = v.e[1], e[k] = v.e[2]; } \
    MSL_PROPERTY_W(3, n, m, get_##i##j##k, put_##i##j##k)
#define MSL_W4(n, m, i, j, k, l) \
    MSL_GET(4, get_##i##j##k##l, e[i], e[j], e[k], e[l]) \
    MSL_FN constexpr void put_##i##j##k##l(vec<T, 4> v) { e[i] = v.e[0], e[j] = v.e[1], e[k] = v.e[2], e[l] = v.e[3]; } \
    MSL_PROPERTY_W(4, n, m, get_##i##j##k##l, put_##i##j##k##l)
#define MSL_MEMBERS2 struct { T x, y; }; struct { T r, g; };
#define MSL_MEMBERS3 struct { T x, y, z; }; struct { T r, g, b; };
#define MSL_MEMBERS4 struct { T x, y, z, w; }; struct { T r, g, b, a; };
#define MSL_ALL_SWIZZLES2 MSL_SWIZZLES_2()
#define MSL_ALL_SWIZZLES3 MSL_ALL_SWIZZLES2 MSL_SWIZZLES_3()
#define MSL_ALL_SWIZZLES4 MSL_ALL_SWIZZLES3 MSL_SWIZZLES_4()

// A copy moves the whole vector at once, as a GPU does. PTX: so that loads are ld.v2 and ld.v4. Checked: so that the checker sees
// one access of 8 or 16 bytes and its alignment. Three components move one by one: their padding may be unwritten.
// MSL_TRIVIAL_COPY: the source has a union, which C++ lets hold only what is copied byte by byte.
template <class T, int N> struct native { typedef T type __attribute__((ext_vector_type(N))); };
template <int N> struct native<bool, N> { typedef uchar type __attribute__((ext_vector_type(N))); };
template <int N> struct native<bfloat, N> { typedef ushort type __attribute__((ext_vector_type(N))); };
#define MSL_MOVE_NATIVE(N) *(typename native<T, N>::type*)e = *(const typename native<T, N>::type*)o.e;
#define MSL_MOVE2 MSL_MOVE_NATIVE(2)
#define MSL_MOVE3 e[0] = o.e[0], e[1] = o.e[1], e[2] = o.e[2];
#define MSL_MOVE4 MSL_MOVE_NATIVE(4)
#if defined(MSL_NATIVE_COPY) || (defined(MSL_CHECK) && !defined(MSL_TRIVIAL_COPY))
#define MSL_COPY(N) \
    MSL_FN constexpr vec(const vec& o) { \
        if (__builtin_is_constant_evaluated()) \
            for (int i = 0; i < N; i++) e[i] = o.e[i]; \
        else { MSL_MOVE##N } \
    } \
    MSL_FN constexpr vec& operator=(const vec& o) { \
        if (__builtin_is_constant_evaluated()) \
            for (int i = 0; i < N; i++) e[i] = o.e[i]; \
        else { MSL_MOVE##N } \
        return *this; \
    }
#else
#define MSL_COPY(N) \
    vec(const vec&) = default; \
    vec& operator=(const vec&) = default;
#endif

// The lint keeps address spaces: an element is in that of its vector, and vectors can be read from `constant`.
#if defined(MSL_LINT)
#define MSL_SUBSCRIPT(self) \
    __private T& operator[](size_t i) __private { return e[i]; } \
    __private const T& operator[](size_t i) const __private { return e[i]; } \
    __global T& operator[](size_t i) __global { return e[i]; } \
    __global const T& operator[](size_t i) const __global { return e[i]; } \
    __local T& operator[](size_t i) __local { return e[i]; } \
    __local const T& operator[](size_t i) const __local { return e[i]; } \
    __constant const T& operator[](size_t i) const __constant { return e[i]; } \
    self(const __constant self& o);
#else
#define MSL_SUBSCRIPT(self) \
    MSL_FN constexpr T& operator[](size_t i) { return e[i]; } \
    MSL_FN constexpr const T& operator[](size_t i) const { return e[i]; }
#endif

#define MSL_PARAMS2(T) T a0, T a1
#define MSL_PARAMS3(T) T a0, T a1, T a2
#define MSL_PARAMS4(T) T a0, T a1, T a2, T a3
#define MSL_NAMES2 a0, a1
#define MSL_NAMES3 a0, a1, a2
#define MSL_NAMES4 a0, a1, a2, a3

#define MSL_VEC(N, ALIGN) \
    template <class T> struct alignas(sizeof(T) * ALIGN) vec<T, N> : vec_operators<T, N> { \
        typedef T elem_type; \
        union { \
            T e[N]; \
            MSL_MEMBERS##N \
        }; \
        vec() = default; \
        MSL_COPY(N) \
        MSL_FN constexpr vec(MSL_PARAMS##N(T)) : e{MSL_NAMES##N} {} \
        template <class S, enable_if_t<is_arithmetic_v<S>, int> = 0> \
        MSL_FN constexpr vec(S s) : vec(MSL_ALL##N(MSL_SPLAT, scalar_cast<T>(s))) {} \
        template <class U, enable_if_t<!is_same_v<U, T>, int> = 0> \
        MSL_FN constexpr explicit vec(const vec<U, N>& o) : vec(from(vec<U, N>(o))) {} \
        template <class U, enable_if_t<!is_same_v<U, T>, int> = 0> \
        MSL_FN constexpr explicit vec(const packed_vec<U, N>& o) : e{MSL_ALL##N(MSL_CAST, T, o)} {} \
        /* Scalars and shorter vectors that make up N components. */ \
        template <class A0, class A1, class... A, \
                  enable_if_t<components<A0>::value && components<A1>::value && \
                                  components<A0>::value + components<A1>::value + (0 + ... + components<A>::value) == N, \
                              int> = 0> \
        MSL_FN constexpr vec(const A0& a0, const A1& a1, const A&... a) : e{} { \
            int k = 0; \
            put(k, a0), put(k, a1), (put(k, a), ...); \
        } \
        /* `{a, b}`: what is left out is zero. */ \
        MSL_FN constexpr vec(std::initializer_list<T> list) : e{} { \
            for (int i = 0; i < N && i < (int)list.size(); i++) e[i] = list.begin()[i]; \
        } \
        MSL_SUBSCRIPT(vec) \
        MSL_ALL_SWIZZLES##N \
    private: \
        template <class U> static MSL_FN constexpr vec from(const vec<U, N>& o) { return vec(MSL_ALL##N(MSL_CAST, T, o)); } \
        template <class A> MSL_FN constexpr void put(int& k, const A& a) { \
            if constexpr (components<A>::value == 1) \
                e[k++] = scalar_cast<T>(a); \
            else \
                for (int i = 0; i < components<A>::value; i++) e[k++] = scalar_cast<T>(a.e[i]); \
        } \
    };
MSL_VEC(2, 2) MSL_VEC(3, 4) MSL_VEC(4, 4)

// packed_T: aligned as its elements, no padding; becomes a vector when it is used.
#define MSL_PACKED(N) \
    template <class T> struct packed_vec<T, N> : vec_operators<T, N> { \
        typedef T elem_type; \
        union { \
            T e[N]; \
            MSL_MEMBERS##N \
        }; \
        packed_vec() = default; \
        MSL_FN constexpr packed_vec(const vec<T, N>& v) : e{MSL_ALL##N(MSL_CAST, T, v)} {} \
        MSL_FN constexpr packed_vec(MSL_PARAMS##N(T)) : e{MSL_NAMES##N} {} \
        MSL_FN constexpr packed_vec(std::initializer_list<T> list) : packed_vec(vec<T, N>(list)) {} \
        template <class... A, enable_if_t<__is_constructible(vec<T, N>, const A&...) && sizeof...(A) != 0, int> = 0> \
        MSL_FN constexpr explicit packed_vec(const A&... a) : packed_vec(vec<T, N>(a...)) {} \
        MSL_FN constexpr operator vec<T, N>() const { return vec<T, N>(MSL_ALL##N(MSL_CAST, T, *this)); } \
        MSL_SUBSCRIPT(packed_vec) \
        MSL_ALL_SWIZZLES##N \
    };
MSL_PACKED(2) MSL_PACKED(3) MSL_PACKED(4)

} // namespace metal

// Metal declares these at global scope, and metal:: has them too.
#define MSL_VECTORS(T) \
    typedef metal::vec<T, 2> T##2; \
    typedef metal::vec<T, 3> T##3; \
    typedef metal::vec<T, 4> T##4; \
    typedef metal::packed_vec<T, 2> packed_##T##2; \
    typedef metal::packed_vec<T, 3> packed_##T##3; \
    typedef metal::packed_vec<T, 4> packed_##T##4; \
    namespace metal { \
    using ::T##2; \
    using ::T##3; \
    using ::T##4; \
    using ::packed_##T##2; \
    using ::packed_##T##3; \
    using ::packed_##T##4; \
    }
MSL_VECTORS(bool) MSL_VECTORS(char) MSL_VECTORS(uchar) MSL_VECTORS(short) MSL_VECTORS(ushort) MSL_VECTORS(int) MSL_VECTORS(uint)
MSL_VECTORS(long) MSL_VECTORS(ulong) MSL_VECTORS(half) MSL_VECTORS(float) MSL_VECTORS(bfloat)

#undef MSL_OP
#undef MSL_CMP
#undef MSL_VEC
#undef MSL_PACKED
#undef MSL_VECTORS
