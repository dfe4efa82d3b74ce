// What every form of attention shares.

constant uint SOFTCAP [[function_constant(2)]];
constant uint SINKS [[function_constant(3)]];

// Below every score, and still a number: what compares with infinities may be optimised away. A literal, so that `?:` never
// has to choose between variables of two address spaces.
#define LOWEST (-3.0e38f)

inline float capped(float score, float cap) {
    return SOFTCAP ? cap * precise::tanh(precise::divide(score, cap)) : score;
}

// First index a query that sees `visible` tokens may look at.
inline uint window_begin(uint visible, uint window) {
    return visible > window ? visible - window : 0;
}

inline float inverse_or_zero(float x) {
    return x > 0.0f ? precise::divide(1.0f, x) : 0.0f;
}
