// Textures and samplers are not run: kernels that take them are left out. These declarations let the rest of a file that uses them
// compile. Reads give zeros, writes do nothing.
#pragma once
#include "msl_sync.h"

namespace metal {
enum class access { sample, read, write, read_write };
enum class coord { normalized, pixel };
enum class address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class s_address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class t_address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class r_address { clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat };
enum class filter { nearest, linear };
enum class mag_filter { nearest, linear };
enum class min_filter { nearest, linear };
enum class mip_filter { none, nearest, linear };
enum class compare_func { never, less, less_equal, greater, greater_equal, equal, not_equal, always };
enum class border_color { transparent_black, opaque_black, opaque_white };
enum class component { x, y, z, w };
struct max_anisotropy { constexpr max_anisotropy(int) {} };
struct lod_clamp { constexpr lod_clamp(float, float) {} };
struct level { constexpr level(float) {} };
struct bias { constexpr bias(float) {} };

struct sampler {
    template <class... A> constexpr sampler(A...) {}
};

#define MSL_TEXTURE(name) \
    template <class T, access A = access::sample> struct name { \
        template <class... P> vec<T, 4> sample(P...) const { return vec<T, 4>(T(0)); } \
        template <class... P> vec<T, 4> gather(P...) const { return vec<T, 4>(T(0)); } \
        template <class... P> vec<T, 4> read(P...) const { return vec<T, 4>(T(0)); } \
        template <class... P> void write(P...) const {} \
        void fence() const {} \
        uint get_width(uint = 0) const { return 0; } \
        uint get_height(uint = 0) const { return 0; } \
        uint get_depth(uint = 0) const { return 0; } \
        uint get_array_size() const { return 0; } \
        uint get_num_mip_levels() const { return 0; } \
    };
MSL_TEXTURE(texture1d) MSL_TEXTURE(texture1d_array) MSL_TEXTURE(texture2d) MSL_TEXTURE(texture2d_array) MSL_TEXTURE(texture3d)
MSL_TEXTURE(texturecube) MSL_TEXTURE(texturecube_array) MSL_TEXTURE(texture2d_ms) MSL_TEXTURE(texture_buffer) MSL_TEXTURE(depth2d)
#undef MSL_TEXTURE
} // namespace metal
