//! Numbers as bytes, for binding them to kernels.

mod sealed {
    pub trait Sealed {}
}

/// A number without padding or invalid bit patterns.
pub trait Element: Copy + Default + sealed::Sealed + 'static {}

macro_rules! elements {
    ($($t:ty),*) => { $(impl sealed::Sealed for $t {} impl Element for $t {})* };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32);

/// The bytes of a slice of numbers.
pub fn as_bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: an `Element` has no padding; the length is that of the slice in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of a slice of numbers, to be written.
pub fn as_bytes_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every bit pattern is a valid `Element`.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
