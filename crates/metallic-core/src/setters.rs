//! Methods that set options.

/// Gives a struct of options a method for each field, so that one is written `Options::default().threads(4).exact(true)`
/// and may get further fields later. Fields of a struct inside it are set by the same kind of method where they are listed
/// after its name. A field that is an `Option` is listed as `impl Into<Option<T>>` and takes the value itself.
///
/// ```
/// #[derive(Default)]
/// pub struct Lamp {
///     pub watts: u32,
///     pub shade: Shade,
/// }
/// #[derive(Default)]
/// pub struct Shade {
///     pub colour: Option<String>,
/// }
/// metallic_core::setters!(Lamp { watts: u32, shade: Shade } shade { colour: impl Into<Option<String>> });
///
/// let lamp = Lamp::default().watts(40).colour("red".to_owned());
/// assert_eq!((lamp.watts, lamp.shade.colour.as_deref()), (40, Some("red")));
/// ```
#[macro_export]
macro_rules! setters {
    ($options:ident { $($field:ident: $value:ty),* $(,)? } $($inner:ident { $($nested:ident: $of:ty),* $(,)? })*) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field.into();
                    self
                }
            )*
            $($(
                #[doc = concat!("Sets `", stringify!($nested), "` of [`", stringify!($inner), "`](Self#structfield.", stringify!($inner), ").")]
                #[must_use]
                pub fn $nested(mut self, $nested: $of) -> Self {
                    self.$inner.$nested = $nested.into();
                    self
                }
            )*)*
        }
    };
}
