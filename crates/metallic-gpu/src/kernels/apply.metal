// The function of an element-wise kernel, and what it may be.

constant uint FUNCTION [[function_constant(0)]];

inline float map1(float x, float value) {
    switch (FUNCTION) {
        case F_ADD: return x + value;
        case F_SUB: return x - value;
        case F_SUB_FROM: return value - x;
        case F_MUL: return x * value;
        case F_DIV: return precise::divide(x, value);
        case F_DIV_INTO: return precise::divide(value, x);
        case F_MIN: return min(x, value);
        case F_MAX: return max(x, value);
        case F_SOFTCAP: return value * precise::tanh(precise::divide(x, value));
        default: return activate(FUNCTION, x);
    }
}

inline float map2(float a, float b) {
    switch (FUNCTION) {
        case F_ADD: return a + b;
        case F_SUB: return a - b;
        case F_MUL: return a * b;
        case F_DIV: return precise::divide(a, b);
        case F_MIN: return min(a, b);
        case F_MAX: return max(a, b);
        default: return activate(FUNCTION, a) * b;
    }
}
