//! Which vector instructions to use: found once at run time, never assumed.

use std::sync::OnceLock;

use metallic_core::DType;

/// An instruction set the kernels are written for, from the plainest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust that the compiler vectorises for the build's target.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set, plainest first.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512Vnni];

    /// The best this processor has, or a lower one named by `METALLIC_CPU_ISA` (`portable`, `avx2`, `avx512`).
    ///
    /// A name that is unknown, or better than the processor, is ignored: kernels never run what is not there.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let asked = std::env::var("METALLIC_CPU_ISA").ok().and_then(|name| Isa::from_name(&name));
            asked.map_or(Isa::best(), Isa::usable)
        })
    }

    /// The best this processor has.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(probe)
    }

    /// Those this processor has, plainest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| *isa <= Isa::best())
    }

    /// This one, or the best the processor has where this is beyond it.
    #[must_use]
    pub fn usable(self) -> Isa {
        self.min(Isa::best())
    }

    /// Whether a scale for each half of a group of activations costs products with such weights nothing: measured with 512
    /// tokens, where AVX-512 takes 3 of 100 more time for types with minima, and AVX2 up to 8 for all. With one token memory is
    /// the limit.
    pub fn has_cheap_halves(self, dtype: DType) -> bool {
        self.usable() == Isa::Avx512Vnni && matches!(dtype, DType::Q4_0 | DType::Q8_0)
    }

    /// The name `METALLIC_CPU_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512Vnni => "avx512",
        }
    }

    /// The instruction set with this name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name))
    }
}

#[cfg(target_arch = "x86_64")]
fn probe() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512Vnni,
        (true, false) => Isa::Avx2,
        (false, _) => Isa::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn probe() -> Isa {
    Isa::Portable
}

/// Declares functions `avx512`, `avx2` and `portable`: a generic body `f::<Lanes>(args)` compiled for each instruction set.
///
/// The body must be `#[inline(always)]`: it takes on the target features of the function it lands in.
macro_rules! compile {
    ($body:ident $(::<$g:ty>)? ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn avx512($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function has the features `Avx512` asks for.
            unsafe { $body::<$crate::simd::lanes::Avx512 $(, $g)?>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function has the features `Avx2` asks for.
            unsafe { $body::<$crate::simd::lanes::Avx2 $(, $g)?>($($arg),*) }
        }
        fn portable($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: `Portable` asks for no feature.
            unsafe { $body::<$crate::simd::lanes::Portable $(, $g)?>($($arg),*) }
        }
    };
}

/// Runs a generic body, as [`compile`] takes it, for the given instruction set. It may also stand in place, as
/// `fn<L>(args) { .. }`.
macro_rules! dispatch {
    ($isa:expr, fn<$lanes:ident>($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block) => {{
        #[inline(always)]
        unsafe fn body<$lanes: $crate::simd::lanes::Lanes>($($arg: $ty),*) $(-> $ret)? $body
        dispatch!($isa, body($($arg: $ty),*) $(-> $ret)?)
    }};
    ($isa:expr, $body:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {{
        $crate::simd::isa::compile!($body($($arg: $ty),*) $(-> $ret)?);
        match $isa.usable() {
            // SAFETY: `usable` names only what this processor has.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512Vnni => unsafe { avx512($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
            _ => portable($($arg),*),
        }
    }};
}
pub(super) use {compile, dispatch};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_set_beyond_the_processor_is_never_used() {
        for isa in Isa::ALL {
            assert!(isa.usable() <= Isa::best());
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert!(Isa::detect() <= Isa::best());
        assert_eq!(Isa::from_name("mmx"), None);
    }
}
