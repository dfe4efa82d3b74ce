//! Part of the Metallic inference engine.
