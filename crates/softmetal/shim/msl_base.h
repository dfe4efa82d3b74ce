// Scalars, macros and traits of the Metal standard library, in C++17 for clang.
//
// These headers stand in for Apple's: the same names and overloads, so that a source which compiles here means the same there.
// Address spaces are gone by now (the rewriter drops them), and every function is `nodebug`: debug information then names the
// line of the kernel that called it, which is where a report must point.
#pragma once

// Vectors take scalars of every kind between braces: `uint4 k = {a, b, c};`.
#pragma clang diagnostic ignored "-Wc++11-narrowing"

#define MSL_FN inline __attribute__((always_inline, nodebug))
// For functions that sources bring along for bfloat, in namespace metal, because Apple's library lacked them: both may stand, ours
// is called.
#define MSL_OWN __attribute__((enable_if(true, ""))) MSL_FN
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_INTERNAL METAL_FUNC
#define METAL_ASM
#define METAL_CONST
#define METAL_PURE
#define METAL_CONVERGENT
#define METAL_VALID_ARGS(...)

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
#if defined(MSL_LINT)
// The address-space lint reads these headers as C++ for OpenCL, where half is a keyword and some common names are taken.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
#define atomic_int msl_atomic_int
#define atomic_uint msl_atomic_uint
#define atomic_long msl_atomic_long
#define atomic_ulong msl_atomic_ulong
#define atomic_float msl_atomic_float
#define atomic_bool msl_atomic_bool
#define global msl_global
#define local msl_local
#define generic msl_generic
#define pipe msl_pipe
#define read_only msl_read_only
#define write_only msl_write_only
#define read_write msl_read_write
#define vec_step msl_vec_step
template <class T> bool is_function_constant_defined(const T&);
#else
typedef _Float16 half;
#endif
typedef half float16_t;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define HUGE_VALH ((half)__builtin_inff())

#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_10_EXP 38
#define FLT_MAX_EXP 128
#define FLT_MIN_10_EXP (-37)
#define FLT_MIN_EXP (-125)
#define FLT_RADIX 2
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.19209290e-07f
#define FLT_DECIMAL_DIG 9
#define FLT_TRUE_MIN 1.40129846e-45f
#define MAXFLOAT FLT_MAX
#define FP_ILOGB0 (-2147483647 - 1)
#define FP_ILOGBNAN 2147483647

#define HALF_DIG 2
#define HALF_MANT_DIG 11
#define HALF_MAX_10_EXP 4
#define HALF_MAX_EXP 16
#define HALF_MIN_10_EXP (-4)
#define HALF_MIN_EXP (-13)
#define HALF_RADIX 2
#define HALF_MAX ((half)65504.0f)
#define HALF_MIN ((half)6.103515625e-05f)
#define HALF_EPSILON ((half)0.0009765625f)
#define HALF_DECIMAL_DIG 5
#define MAXHALF HALF_MAX

#define BFLT_DIG 2
#define BFLT_MANT_DIG 8
#define BFLT_MAX_10_EXP 38
#define BFLT_MAX_EXP 128
#define BFLT_MIN_10_EXP (-37)
#define BFLT_MIN_EXP (-125)
#define BFLT_RADIX 2
#define BFLT_MAX (bfloat(3.38953139e38f))
#define BFLT_MIN (bfloat(1.17549435e-38f))
#define BFLT_EPSILON (bfloat(0.0078125f))
#define MAXBFLOAT BFLT_MAX

#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-9223372036854775807L - 1)
#define ULONG_MAX 18446744073709551615UL
#define INT8_MAX 127
#define INT8_MIN (-128)
#define UINT8_MAX 255
#define INT16_MAX 32767
#define INT16_MIN (-32768)
#define UINT16_MAX 65535
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define UINT32_MAX UINT_MAX
#define INT64_MAX LONG_MAX
#define INT64_MIN LONG_MIN
#define UINT64_MAX ULONG_MAX

#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_E_H ((half)M_E_F)
#define M_LOG2E_H ((half)M_LOG2E_F)
#define M_LOG10E_H ((half)M_LOG10E_F)
#define M_LN2_H ((half)M_LN2_F)
#define M_LN10_H ((half)M_LN10_F)
#define M_PI_H ((half)M_PI_F)
#define M_PI_2_H ((half)M_PI_2_F)
#define M_PI_4_H ((half)M_PI_4_F)
#define M_1_PI_H ((half)M_1_PI_F)
#define M_2_PI_H ((half)M_2_PI_F)
#define M_2_SQRTPI_H ((half)M_2_SQRTPI_F)
#define M_SQRT2_H ((half)M_SQRT2_F)
#define M_SQRT1_2_H ((half)M_SQRT1_2_F)

// An assertion that fails is reported and ends its thread; on an NVIDIA GPU there is nobody to tell.
#if !defined(assert)
#if defined(NDEBUG) || defined(__NVPTX__) || defined(MSL_LINT)
#define assert(...) ((void)0)
#else
extern "C" void msl_rt_assertion(const char* text, const char* file, int line);
#define assert(...) ((__VA_ARGS__) ? (void)0 : msl_rt_assertion(#__VA_ARGS__, __builtin_FILE(), __builtin_LINE()))
#endif
#endif

struct bfloat;

namespace metal {

template <class T, T v> struct integral_constant {
    static constexpr T value = v;
    using value_type = T;
    using type = integral_constant;
    constexpr operator T() const { return v; }
    constexpr T operator()() const { return v; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class A, class C> struct conditional { using type = A; };
template <class A, class C> struct conditional<false, A, C> { using type = C; };
template <bool B, class A, class C> using conditional_t = typename conditional<B, A, C>::type;

template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T&> { using type = T; };
template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> struct remove_volatile { using type = T; };
template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> struct remove_cv { using type = typename remove_const<typename remove_volatile<T>::type>::type; };
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T*> { using type = T; };
template <class T> struct remove_pointer<T* const> { using type = T; };
template <class T> struct remove_extent { using type = T; };
template <class T> struct remove_extent<T[]> { using type = T; };
template <class T, size_t N> struct remove_extent<T[N]> { using type = T; };
// Address spaces are already gone.
template <class T> struct remove_addrspace { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using remove_extent_t = typename remove_extent<T>::type;
template <class T> using remove_addrspace_t = T;
template <class T> struct remove_cvref { using type = remove_cv_t<remove_reference_t<T>>; };
template <class T> using remove_cvref_t = typename remove_cvref<T>::type;
template <class T> struct decay { using type = remove_cvref_t<T>; };
template <class T, size_t N> struct decay<T[N]> { using type = T*; };
template <class T, size_t N> struct decay<T (&)[N]> { using type = T*; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct add_const { using type = const T; };
template <class T> struct add_volatile { using type = volatile T; };
template <class T> struct add_cv { using type = const volatile T; };
template <class T> struct add_pointer { using type = remove_reference_t<T>*; };
template <class T> struct add_lvalue_reference { using type = T&; };
template <class T> struct add_rvalue_reference { using type = T&&; };
template <class T> using add_const_t = const T;
template <class T> using add_volatile_t = volatile T;
template <class T> using add_cv_t = const volatile T;
template <class T> using add_pointer_t = typename add_pointer<T>::type;
template <class T> using add_lvalue_reference_t = T&;
template <class T> using add_rvalue_reference_t = T&&;
template <class T> T&& declval();
template <class T> struct type_identity { using type = T; };
template <class T> using type_identity_t = T;

#define MSL_TRAIT(name, ...) \
    template <class T> struct name : bool_constant<(__VA_ARGS__)> {}; \
    template <class T> static constexpr bool name##_v = name<T>::value;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> static constexpr bool is_same_v = is_same<A, B>::value;
MSL_TRAIT(is_void, __is_void(T))
MSL_TRAIT(is_integral, __is_integral(T))
MSL_TRAIT(is_floating_point, __is_floating_point(T) || is_same_v<remove_cv_t<T>, half> || is_same_v<remove_cv_t<T>, bfloat>)
MSL_TRAIT(is_arithmetic, is_integral_v<T> || is_floating_point_v<T>)
MSL_TRAIT(is_scalar, is_arithmetic_v<T> || __is_scalar(T))
MSL_TRAIT(is_fundamental, is_arithmetic_v<T> || __is_void(T))
MSL_TRAIT(is_signed, is_floating_point_v<T> || __is_signed(T))
MSL_TRAIT(is_unsigned, __is_unsigned(T))
MSL_TRAIT(is_pointer, __is_pointer(T))
MSL_TRAIT(is_reference, __is_reference(T))
MSL_TRAIT(is_lvalue_reference, __is_lvalue_reference(T))
MSL_TRAIT(is_rvalue_reference, __is_rvalue_reference(T))
MSL_TRAIT(is_array, __is_array(T))
MSL_TRAIT(is_const, __is_const(T))
MSL_TRAIT(is_volatile, __is_volatile(T))
MSL_TRAIT(is_enum, __is_enum(T))
MSL_TRAIT(is_union, __is_union(T))
MSL_TRAIT(is_class, __is_class(T))
MSL_TRAIT(is_function, __is_function(T))
MSL_TRAIT(is_compound, __is_compound(T))
MSL_TRAIT(is_object, __is_object(T))
MSL_TRAIT(is_standard_layout, __is_standard_layout(T))
MSL_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
MSL_TRAIT(is_trivial, __is_trivial(T))
MSL_TRAIT(is_default_constructible, __is_constructible(T))
MSL_TRAIT(is_copy_constructible, __is_constructible(T, const T&))
template <class F, class T> struct is_convertible : bool_constant<__is_convertible(F, T)> {};
template <class F, class T> static constexpr bool is_convertible_v = is_convertible<F, T>::value;
template <class B, class D> struct is_base_of : bool_constant<__is_base_of(B, D)> {};
template <class B, class D> static constexpr bool is_base_of_v = is_base_of<B, D>::value;
template <class T, class... A> struct is_constructible : bool_constant<__is_constructible(T, A...)> {};
template <class T, class... A> static constexpr bool is_constructible_v = is_constructible<T, A...>::value;
template <class T, class U> struct is_assignable : bool_constant<__is_assignable(T, U)> {};
template <class T, class U> static constexpr bool is_assignable_v = is_assignable<T, U>::value;
template <class T> struct rank : integral_constant<size_t, 0> {};
template <class T, size_t N> struct rank<T[N]> : integral_constant<size_t, rank<T>::value + 1> {};
template <class T> struct alignment_of : integral_constant<size_t, alignof(T)> {};
template <class T> struct underlying_type { using type = __underlying_type(T); };
template <class T> using underlying_type_t = typename underlying_type<T>::type;

template <class... B> struct conjunction : bool_constant<(B::value && ...)> {};
template <class... B> struct disjunction : bool_constant<(B::value || ...)> {};
template <class B> struct negation : bool_constant<!B::value> {};
template <class... B> static constexpr bool conjunction_v = (B::value && ...);
template <class... B> static constexpr bool disjunction_v = (B::value || ...);
template <class... B> struct _conjunction : conjunction<B...> {};
template <class... B> struct _disjunction : disjunction<B...> {};

#define MSL_PAIR(S, U) \
    template <> struct make_unsigned<S> { using type = U; }; \
    template <> struct make_unsigned<U> { using type = U; }; \
    template <> struct make_signed<S> { using type = S; }; \
    template <> struct make_signed<U> { using type = S; };
template <class T> struct make_unsigned;
template <class T> struct make_signed;
MSL_PAIR(signed char, uchar) MSL_PAIR(short, ushort) MSL_PAIR(int, uint) MSL_PAIR(long, ulong) MSL_PAIR(long long, unsigned long long)
template <> struct make_unsigned<char> { using type = uchar; };
template <> struct make_signed<char> { using type = char; };
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> using make_signed_t = typename make_signed<T>::type;
#undef MSL_PAIR

// Sources have functions of these names of their own. Theirs are called where both would do: the empty pack makes ours the poorer match.
template <class T, class... NONE> MSL_FN constexpr remove_reference_t<T>&& move(T&& t, NONE...) {
    static_assert(sizeof...(NONE) == 0, "move takes one argument");
    return static_cast<remove_reference_t<T>&&>(t);
}
template <class T, class... NONE> MSL_FN constexpr T&& forward(remove_reference_t<T>& t, NONE...) {
    static_assert(sizeof...(NONE) == 0, "forward takes one argument");
    return static_cast<T&&>(t);
}
template <class T, class... NONE> MSL_FN constexpr void swap(T& a, T& b, NONE...) {
    static_assert(sizeof...(NONE) == 0, "swap takes two arguments");
    T t = a;
    a = b;
    b = t;
}

// Functions that the host has chosen: how many there are, then their addresses.
template <class F> struct visible_function_table;
template <class R, class... A> struct visible_function_table<R(A...)> {
    const ulong* functions;
    MSL_FN uint size() const { return (uint)functions[0]; }
    MSL_FN bool empty() const { return functions[0] == 0; }
    typedef R (*function)(A...);
    MSL_FN function operator[](size_t i) const { return (function)functions[1 + i]; }
};

template <class T, T... I> struct integer_sequence {
    typedef T value_type;
    static constexpr size_t size() { return sizeof...(I); }
};
template <size_t... I> using index_sequence = integer_sequence<size_t, I...>;
template <class T, T N> using make_integer_sequence = __make_integer_seq<integer_sequence, T, N>;
template <size_t N> using make_index_sequence = make_integer_sequence<size_t, N>;
template <class... T> using index_sequence_for = make_index_sequence<sizeof...(T)>;

// Metal's uniform<T>: a value the same in every thread of the simdgroup. A plain value here.
template <class T> using uniform = T;
template <class T> MSL_FN constexpr T make_uniform(T x) { return x; }

} // namespace metal

// Reads the bits of one type as another of the same size.
template <class To, class From> MSL_FN To as_type(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "as_type needs types of the same size");
    To to;
#if !defined(MSL_LINT)
    __builtin_memcpy(&to, &from, sizeof(To));
#endif
    return to;
}

// What a braced list becomes; layout as clang builds it.
namespace std {
template <class T> class initializer_list {
    const T* first;
    size_t count;

public:
    constexpr initializer_list() : first(nullptr), count(0) {}
    constexpr initializer_list(const T* p, size_t n) : first(p), count(n) {}
    constexpr size_t size() const { return count; }
    constexpr const T* begin() const { return first; }
    constexpr const T* end() const { return first + count; }
};
} // namespace std
