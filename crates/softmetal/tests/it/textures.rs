//! Textures and samplers, against plain formulas.

use softmetal::{
    Device, Dispatch, Flavour, Format, Kind, Library, Outcome, Sampler, Severity, Shape, Source, Texture,
    TextureKind, as_bytes, as_bytes_mut,
    texture::{Address, BorderColor, Coordinates, Filter, Region},
};

fn compiled(body: &str, flavour: Flavour) -> Option<Library> {
    let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{body}");
    let compiler = crate::front::compiler()?.flavour(flavour);
    Some(compiler.compile(&Source::new("texture.metal", source)).unwrap_or_else(|e| panic!("{e}")))
}

fn both(body: &str) -> Vec<Library> {
    [Flavour::Plain, Flavour::Checked].into_iter().filter_map(|flavour| compiled(body, flavour)).collect()
}

fn clean(dispatch: Dispatch<'_>) -> Outcome {
    let outcome = dispatch.run().unwrap_or_else(|e| panic!("{e}"));
    assert!(outcome.is_clean(), "{}", outcome.reports[0]);
    outcome
}

fn image(kind: TextureKind, format: Format, size: [u32; 3], layers: u32, bytes: &[u8]) -> Texture {
    Texture::with_bytes(Shape { kind, format, size, layers }, bytes).unwrap_or_else(|e| panic!("{e}"))
}

fn floats(format: Format, size: [u32; 2], values: &[f32]) -> Texture {
    image(TextureKind::Texture2d, format, [size[0], size[1], 1], 1, as_bytes(values))
}

fn as_floats(texture: &Texture) -> Vec<f32> {
    texture.bytes().unwrap().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn an_image_is_read_and_written_texel_by_texel() {
    let body = "
kernel void turn(texture2d<float, access::read> from [[texture(0)]], texture2d<half, access::write> to [[texture(1)]],
                 device uint* sizes [[buffer(0)]], uint2 at [[thread_position_in_grid]]) {
    if (at.x >= from.get_width() || at.y >= from.get_height()) return;
    float4 color = from.read(at);
    to.write(half4(color.bgra), ushort2(at.yx));
    if (all(at == 0)) sizes[0] = from.get_width(), sizes[1] = from.get_height(), sizes[2] = from.get_num_mip_levels();
}";
    for library in both(body) {
        let texels: Vec<u8> = (0..5 * 3 * 4).map(|n| (n * 4) as u8).collect();
        let from = image(TextureKind::Texture2d, Format::Rgba8Unorm, [5, 3, 1], 1, &texels);
        let to = Texture::new(Shape::two(Format::Rgba8Unorm, 3, 5)).unwrap();
        let (device, mut sizes) = (Device::with_workers(2), [0_u32; 3]);
        let dispatch = device.dispatch(&library, "turn").unwrap().texture(0, &from).texture(1, &to);
        clean(dispatch.buffer_mut(0, as_bytes_mut(&mut sizes)).threads([8, 8, 1], [4, 4, 1]));
        assert_eq!(sizes, [5, 3, 1]);
        let turned = to.bytes().unwrap();
        for (x, y) in (0..5).flat_map(|x| (0..3).map(move |y| (x, y))) {
            let (a, b) = (&texels[(y * 5 + x) * 4..][..4], &turned[(x * 3 + y) * 4..][..4]);
            assert_eq!([a[2], a[1], a[0], a[3]], b, "{x} {y}");
        }
    }
}

#[test]
fn every_format_is_read_and_written_by_kernels_of_its_type() {
    let copy = |kind: &str| {
        format!(
            "kernel void copy_{kind}(texture1d<{kind}, access::read> from [[texture(0)]], texture1d<{kind}, access::read_write> to [[texture(1)]],
                uint i [[thread_position_in_grid]]) {{ to.write(from.read(i), i); to.fence(); to.write(to.read(i), i); }}\n"
        )
    };
    let body = ["float", "half", "int", "uint", "short", "ushort"].map(copy).concat();
    for library in both(&body) {
        let device = Device::with_workers(1);
        for &format in Format::ALL {
            let shape = Shape { kind: TextureKind::Texture1d, format, size: [6, 1, 1], layers: 1 };
            // Small numbers, which floats of 16 bits have too.
            let texels: Vec<u8> = (0..shape.bytes()).map(|n| (n % 7) as u8 * 9).collect();
            let from = Texture::with_bytes(shape, &texels).unwrap();
            let kernel = match (format.encoding(), format.component_bytes()) {
                (softmetal::texture::Encoding::Uint, 4) => "copy_uint",
                (softmetal::texture::Encoding::Uint, _) => "copy_ushort",
                (softmetal::texture::Encoding::Sint, 4) => "copy_int",
                (softmetal::texture::Encoding::Sint, _) => "copy_short",
                (softmetal::texture::Encoding::Float, 2) => "copy_half",
                _ => "copy_float",
            };
            let to = Texture::new(shape).unwrap();
            let dispatch = device.dispatch(&library, kernel).unwrap().texture(0, &from).texture(1, &to);
            clean(dispatch.threads([6, 1, 1], [6, 1, 1]));
            assert_eq!(to.bytes().unwrap(), texels, "{}", format.name());
            // Another type is refused by name.
            let other =
                if kernel == "copy_float" || kernel == "copy_half" { "copy_uint" } else { "copy_float" };
            let dispatch = device.dispatch(&library, other).unwrap().texture(0, &from).texture(1, &to);
            let refused = dispatch.run().unwrap_err().to_string();
            assert!(
                refused.contains(&format!(
                    "texture 0 is a texture1d of {}, but argument `from` is a texture1d<",
                    format.name()
                )),
                "{refused}"
            );
        }
    }
}

/// One linear sample in two dimensions, written down once more.
fn expected(texels: &[f32], size: [i64; 2], sampler: Sampler, at: [f32; 2], outside: f32) -> f32 {
    let texel = |x: i64, y: i64| {
        let mut place = [x, y];
        for (axis, place) in place.iter_mut().enumerate() {
            let n = size[axis];
            *place = match sampler.address[axis] {
                Address::ClampToEdge => (*place).max(0).min(n - 1),
                Address::Repeat => ((*place % n) + n) % n,
                Address::MirroredRepeat => {
                    let m = ((*place % (2 * n)) + 2 * n) % (2 * n);
                    if m < n { m } else { 2 * n - 1 - m }
                }
                Address::ClampToZero | Address::ClampToBorder if *place < 0 || *place >= n => return outside,
                Address::ClampToZero | Address::ClampToBorder => *place,
            };
        }
        texels[(place[1] * size[0] + place[0]) as usize]
    };
    let scaled = |axis: usize| match sampler.coordinates {
        Coordinates::Normalized => at[axis] * size[axis] as f32,
        Coordinates::Pixel => at[axis],
    };
    let (x, y) = (scaled(0), scaled(1));
    if sampler.mag_filter == Filter::Nearest {
        return texel(x.floor() as i64, y.floor() as i64);
    }
    let (left, top) = ((x - 0.5).floor(), (y - 0.5).floor());
    let (right, bottom) = (x - 0.5 - left, y - 0.5 - top);
    let (i, j) = (left as i64, top as i64);
    (1.0 - bottom) * ((1.0 - right) * texel(i, j) + right * texel(i + 1, j))
        + bottom * ((1.0 - right) * texel(i, j + 1) + right * texel(i + 1, j + 1))
}

const SAMPLE: &str = "
kernel void bound(texture2d<float> image [[texture(0)]], sampler how [[sampler(2)]], device const float2* at [[buffer(0)]],
                  device float4* out [[buffer(1)]], uint i [[thread_position_in_grid]]) { out[i] = image.sample(how, at[i]); }
constexpr sampler outer(coord::pixel, address::clamp_to_zero, filter::linear);
kernel void written(texture2d<float> image [[texture(0)]], device const float2* at [[buffer(0)]], device float4* out [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    constexpr sampler inner(s_address::repeat, t_address::mirrored_repeat, mag_filter::linear, min_filter::nearest);
    out[i] = float4(image.sample(inner, at[i]).x, image.sample(outer, at[i] * 4).x, image.sample(inner, at[i], level(0), int2(1, -1)).x,
                    image.sample(inner, at[i], level(2)).x);
}";

#[test]
fn a_sampler_gives_what_its_formula_says() {
    let texels: Vec<f32> = (0..20).map(|n| (n * n % 17) as f32).collect();
    let points: Vec<f32> = (0..64).map(|n| (n * 37 % 101) as f32 / 40.0 - 0.8).collect();
    let pairs = || points.chunks_exact(2).map(|p| [p[0], p[1]]);
    for library in both(SAMPLE) {
        let image = floats(Format::R32Float, [5, 4], &texels);
        let device = Device::with_workers(1);
        let run = |kernel: &str, sampler: Sampler| -> Vec<f32> {
            let mut out = vec![0.0_f32; 32 * 4];
            let dispatch = device.dispatch(&library, kernel).unwrap().texture(0, &image).sampler(2, sampler);
            let dispatch = dispatch.buffer(0, as_bytes(&points)).buffer_mut(1, as_bytes_mut(&mut out));
            clean(dispatch.threads([32, 1, 1], [32, 1, 1]));
            out
        };
        let close = |found: f32, wanted: f32, what: &str| {
            assert!((found - wanted).abs() < 1e-4, "{what}: {found} {wanted}");
        };
        for (address, border, outside) in [
            (Address::ClampToEdge, BorderColor::TransparentBlack, 0.0),
            (Address::ClampToZero, BorderColor::TransparentBlack, 0.0),
            (Address::ClampToBorder, BorderColor::OpaqueWhite, 1.0),
            (Address::Repeat, BorderColor::TransparentBlack, 0.0),
            (Address::MirroredRepeat, BorderColor::TransparentBlack, 0.0),
        ] {
            for filter in [Filter::Nearest, Filter::Linear] {
                let sampler = Sampler { border, mag_filter: filter, ..Sampler::default().address(address) };
                let out = run("bound", sampler);
                for (n, at) in pairs().enumerate() {
                    let wanted = expected(&texels, [5, 4], sampler, at, outside);
                    close(out[4 * n], wanted, &format!("{address:?} {filter:?} at {at:?}"));
                    // What the format lacks is 0, and 1 the last; beyond the edges the border says.
                    assert!(out[4 * n + 3] >= 0.0 && out[4 * n + 3] <= 1.0);
                }
            }
        }
        let out = run("written", Sampler::default());
        let inner = Sampler {
            address: [Address::Repeat, Address::MirroredRepeat, Address::ClampToEdge],
            mag_filter: Filter::Linear,
            ..Sampler::default()
        };
        let outer = Sampler {
            coordinates: Coordinates::Pixel,
            ..Sampler::default().linear().address(Address::ClampToZero)
        };
        let nearest = Sampler { mag_filter: Filter::Nearest, ..inner };
        for (n, at) in pairs().enumerate() {
            close(out[4 * n], expected(&texels, [5, 4], inner, at, 0.0), "written in the kernel");
            close(
                out[4 * n + 1],
                expected(&texels, [5, 4], outer, at.map(|c| c * 4.0), 0.0),
                "at namespace scope",
            );
            let moved = [at[0] + 1.0 / 5.0, at[1] - 1.0 / 4.0];
            close(out[4 * n + 2], expected(&texels, [5, 4], inner, moved, 0.0), "with an offset");
            close(out[4 * n + 3], expected(&texels, [5, 4], nearest, at, 0.0), "smaller than a texel");
        }
    }
}

#[test]
fn arrays_depth_and_buffers_have_texels_where_they_should() {
    let body = "
constexpr sampler linear(filter::linear);
kernel void k(texture1d_array<float> lines [[texture(0)]], texture2d_array<float, access::sample> pages [[texture(1)]],
              texture3d<float> cube [[texture(2)]], texture_buffer<uint, access::read_write> list [[texture(3)]],
              array<texture2d<float>, 2> two [[texture(4)]], device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[0] = lines.read(2, 1).x + 100 * lines.get_array_size() + lines.sample(linear, 0.5, 9).x;
    out[1] = pages.read(uint2(1, 0), 2).x + 100 * pages.get_array_size() + 1000 * pages.get_height();
    out[2] = cube.read(uint3(1, 0, 1)).x + 100 * cube.get_depth();
    out[3] = cube.sample(linear, float3(0.5)).x;
    out[4] = two[0].read(uint2(0)).x + 10 * two[1].read(uint2(0)).x;
    const float4 around = pages.gather(linear, float2(0.5), 1);
    out[5] = around.x, out[6] = around.y, out[7] = around.z, out[8] = around.w;
    list.write(list.read(3) + list.get_width(), 0);
}";
    let numbers = |count: usize| (0..count).map(|n| n as f32).collect::<Vec<f32>>();
    for library in both(body) {
        use TextureKind::{Texture1dArray, Texture2dArray, Texture3d, TextureBuffer};
        let lines = image(Texture1dArray, Format::R32Float, [4, 1, 1], 2, as_bytes(&numbers(8)));
        let pages = image(Texture2dArray, Format::R32Float, [2, 2, 1], 3, as_bytes(&numbers(12)));
        let cube = image(Texture3d, Format::R32Float, [2, 2, 2], 1, as_bytes(&numbers(8)));
        let list = image(TextureBuffer, Format::R32Uint, [5, 1, 1], 1, as_bytes(&[0_u32, 1, 2, 30, 4]));
        let (one, other) =
            (floats(Format::R32Float, [1, 1], &[3.0]), floats(Format::R32Float, [1, 1], &[4.0]));
        let (device, mut out) = (Device::with_workers(1), [0.0_f32; 9]);
        let dispatch = device.dispatch(&library, "k").unwrap().texture(0, &lines).texture(1, &pages);
        let dispatch = dispatch.texture(2, &cube).texture(3, &list).texture(4, &one).texture(5, &other);
        clean(dispatch.buffer_mut(0, as_bytes_mut(&mut out)).threads([1, 1, 1], [1, 1, 1]));
        // Line 1 is 4 5 6 7: texel 2 is 6, and the middle of the last line 5.5.
        assert_eq!(
            out,
            [6.0 + 200.0 + 5.5, 9.0 + 300.0 + 2000.0, 5.0 + 200.0, 3.5, 43.0, 6.0, 7.0, 5.0, 4.0]
        );
        assert_eq!(list.bytes().unwrap()[..4], 35_u32.to_le_bytes());
    }
}

const EDGE: &str = "
kernel void beside(texture2d<float, access::read> from [[texture(0)]], texture2d<float, access::write> to [[texture(1)]],
                   uint2 at [[thread_position_in_grid]]) {
    to.write(from.read(at) + 1, at);
}
kernel void shift(texture1d<float, access::read_write> row [[texture(0)]], uint i [[thread_position_in_grid]]) {
    float4 left = row.read(i == 0 ? 0 : i - 1);
    BARRIER
    row.write(left, i);
}
kernel void mixed(texture2d<uint> image [[texture(0)]], device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i] = image.sample(sampler(filter::linear), float2(0.5)).x;
}
constant bool has [[function_constant(0)]];
kernel void perhaps(texture2d<float> image [[texture(0), function_constant(has)]], device float* out [[buffer(0)]]) {
    out[0] = is_null_texture(image);
    out[1] = image.read(uint2(0)).x;
}";

#[test]
fn texels_that_are_not_there_are_zeros_and_reported_where_somebody_looks() {
    for checked in [false, true] {
        let flavour = if checked { Flavour::Checked } else { Flavour::Plain };
        let Some(library) = compiled(&EDGE.replace("BARRIER", ""), flavour) else { return };
        let (from, to) =
            (floats(Format::R32Float, [2, 2], &[1.0; 4]), floats(Format::R32Float, [3, 2], &[9.0; 6]));
        let device = Device::with_workers(1);
        let dispatch = device.dispatch(&library, "beside").unwrap().texture(0, &from).texture(1, &to);
        let outcome = dispatch.threads([4, 2, 1], [4, 2, 1]).run().unwrap();
        assert_eq!(as_floats(&to), [2.0, 2.0, 1.0, 2.0, 2.0, 1.0]);
        let found: Vec<_> =
            outcome.reports.iter().map(|r| (r.kind, r.severity, r.at.line, r.texture)).collect();
        if !checked {
            assert!(found.is_empty());
            continue;
        }
        let warning = |texture| (Kind::TextureBounds, Severity::Warning, 6, Some(texture));
        assert_eq!(found, [warning(0), warning(1)], "{}", outcome.reports[0]);
        let text = outcome.reports[0].to_string();
        assert!(text.contains("texel (2, 0) of texture 0, which has (2, 2); zeros are read"), "{text}");

        let small = image(TextureKind::Texture2d, Format::R8Uint, [1, 1, 1], 1, &[7]);
        let mut out = [0_u32; 2];
        let dispatch = device.dispatch(&library, "mixed").unwrap().texture(0, &small);
        let outcome =
            dispatch.buffer_mut(0, as_bytes_mut(&mut out)).threads([1, 1, 1], [1, 1, 1]).run().unwrap();
        assert_eq!((out[0], outcome.reports[0].kind), (7, Kind::TextureFilter));
    }
}

#[test]
fn textures_that_race_are_reported_and_barriers_name_them() {
    for (barrier, wanted) in [
        ("", Some(Kind::DataRace)),
        ("threadgroup_barrier(mem_flags::mem_device);", Some(Kind::WrongMemFlags)),
        ("threadgroup_barrier(mem_flags::mem_texture);", None),
    ] {
        let Some(library) = compiled(&EDGE.replace("BARRIER", barrier), Flavour::Checked) else { return };
        let row = image(TextureKind::Texture1d, Format::R8Unorm, [8, 1, 1], 1, &[0, 1, 2, 3, 4, 5, 6, 7]);
        let device = Device::new();
        let outcome = device
            .dispatch(&library, "shift")
            .unwrap()
            .texture(0, &row)
            .threads([8, 1, 1], [8, 1, 1])
            .run()
            .unwrap();
        assert_eq!(outcome.reports.first().map(|r| r.kind), wanted, "{barrier}: {:?}", outcome.reports);
        if wanted.is_none() {
            assert_eq!(row.bytes().unwrap(), [0, 0, 1, 2, 3, 4, 5, 6]);
        } else {
            assert_eq!(outcome.reports[0].texture, Some(0));
        }
    }
}

#[test]
fn what_is_not_bound_or_does_not_fit_is_said_by_name() {
    for library in both(&EDGE.replace("BARRIER", "")) {
        let device = Device::with_workers(1);
        let from = floats(Format::R32Float, [2, 2], &[1.0; 4]);
        let outcome = device.dispatch(&library, "beside").unwrap().texture(0, &from).run().unwrap();
        let report = outcome.reports[0].to_string();
        assert!(report.contains("nothing is bound to texture 1 (`to`); the kernel was not run"), "{report}");

        let kind =
            device.dispatch(&library, "shift").unwrap().texture(0, &from).run().unwrap_err().to_string();
        assert!(
            kind.ends_with("texture 0 is a texture2d of r32Float, but argument `row` is a texture1d<float>"),
            "{kind}"
        );
        let slot =
            device.dispatch(&library, "shift").unwrap().texture(128, &from).run().unwrap_err().to_string();
        assert!(slot.ends_with("texture index 128: there are 128 slots"), "{slot}");
        let pixel =
            Sampler { coordinates: Coordinates::Pixel, ..Sampler::default().address(Address::Repeat) };
        let wrong =
            device.dispatch(&library, "shift").unwrap().sampler(3, pixel).run().unwrap_err().to_string();
        assert!(wrong.contains("sampler 3 repeats a texture"), "{wrong}");

        // A texture that a constant switches off may stay unbound; whoever reads it all the same sees zeros.
        let mut out = [5.0_f32; 2];
        let outcome = device
            .dispatch(&library, "perhaps")
            .unwrap()
            .buffer_mut(0, as_bytes_mut(&mut out))
            .run()
            .unwrap();
        assert!(outcome.reports.iter().all(|r| r.kind == Kind::UnboundTexture));
        assert_eq!(out, [1.0, 0.0]);
    }
}

#[test]
fn textures_lie_in_buffers_and_are_replaced_by_parts() {
    use std::sync::Arc;
    let buffer = Arc::new(softmetal::Buffer::new(256).unwrap());
    let shape = Shape::two(Format::Rg8Uint, 3, 4);
    let texture = Texture::of_buffer(shape, buffer.clone(), 16, 32).unwrap();
    texture
        .replace(
            Region { origin: [1, 2, 0], size: [2, 2, 1], layer: 0 },
            &[1, 2, 3, 4, 0, 0, 5, 6, 7, 8],
            6,
            0,
        )
        .unwrap();
    let mut row = [0; 4];
    buffer.read(16 + 3 * 32 + 2, &mut row).unwrap();
    assert_eq!(row, [5, 6, 7, 8]);
    let mut part = [0; 4];
    texture.read(Region { origin: [1, 2, 0], size: [1, 2, 1], layer: 0 }, &mut part, 2, 0).unwrap();
    assert_eq!(part, [1, 2, 5, 6]);
    for (made, message) in [
        (Texture::of_buffer(shape, buffer.clone(), 200, 32), "texels past the end of a buffer of 256 bytes"),
        (Texture::of_buffer(shape, buffer.clone(), 0, 4), "rows of 4 bytes, which need at least 6"),
        (Texture::new(Shape::two(Format::R8Unorm, 0, 4)), "a width of 0, which is from 1 to 16384"),
        (Texture::with_bytes(shape, &[0; 3]), "3 bytes, where its texels have 24"),
    ] {
        let error = made.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let outside = texture.replace(Region { origin: [2, 0, 0], size: [2, 1, 1], layer: 0 }, &[0; 8], 4, 0);
    assert!(outside.unwrap_err().to_string().contains("a region of [2, 1, 1] texels at [2, 0, 0]"));
    let short = texture.read(Region { origin: [0, 0, 0], size: [3, 4, 1], layer: 0 }, &mut part, 6, 0);
    assert!(short.unwrap_err().to_string().contains("4 bytes for a region that needs"));
}

#[test]
fn what_is_not_run_is_refused_by_name() {
    let Some(compiler) = crate::front::compiler() else { return };
    let text = "#include <metal_stdlib>\nusing namespace metal;\n\
        kernel void sky(texturecube<float> map [[texture(0)]], device float* out [[buffer(0)]]) { out[0] = map.sample(sampler(), float3(1)).x; }\n\
        kernel void flat(texture2d<float> map [[texture(0)]], device float* out [[buffer(0)]]) { out[0] = map.read(uint2(0)).x; }\n";
    let source = Source::new("absent.metal", text);
    let library = compiler.compile(&source).unwrap();
    assert_eq!(library.kernels().len(), 1);
    assert!(library.warnings()[0].message.contains("kernel `sky` is left out: `map` is a texturecube"));
    let refused = compiler.clone().only(["sky"]).compile(&source).unwrap_err().to_string();
    assert!(
        refused.contains("absent.metal:3:13: error: kernel `sky` is left out: `map` is a texturecube"),
        "{refused}"
    );
    let ptx = softmetal::ptx::ptx(
        &compiler.clone().only(["flat"]),
        &source,
        &softmetal::ptx::PtxOptions::default(),
    );
    let ptx = ptx.unwrap_err().to_string();
    assert!(ptx.contains("kernel `flat` is left out: `map` is a texture, which PTX is not made of"), "{ptx}");
    for (line, message) in [
        (
            "float f(depth2d<float> d) { return 0; } kernel void k() {}",
            "depth2d is not among the textures that softmetal runs",
        ),
        (
            "kernel void k(texture2d<float, access::read> t [[texture(0)]]) { t.write(float4(0), uint2(0)); }",
            "a texture needs access::write or access::read_write to be written",
        ),
        (
            "kernel void k(texture2d<float, access::write> t [[texture(0)]]) { t.read(uint2(0)); }",
            "a texture of access::write cannot be read",
        ),
        (
            "kernel void k(texture2d<float, access::read> t [[texture(0)]]) { t.sample(sampler(), float2(0)); }",
            "a texture needs access::sample to be sampled",
        ),
        (
            "constexpr sampler s(coord::pixel, address::repeat); kernel void k() {}",
            "must be initialized by a constant expression",
        ),
        (
            "kernel void k(texture2d<double> t [[texture(0)]]) {}",
            "texels are float, half, int, uint, short or ushort",
        ),
    ] {
        let source =
            Source::new("wrong.metal", format!("#include <metal_stdlib>\nusing namespace metal;\n{line}"));
        let error = compiler.compile(&source).unwrap_err().to_string();
        assert!(error.contains(message), "{line}: {error}");
    }
}
