//! `+ - * /` and unary `-`, between tensors and numbers.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Binary, Error, Tensor};

/// What an operator gives: a tensor, or the first error on the way to it. It takes part in further operators as a tensor
/// does; [`Computed::tensor`] ends the formula.
#[derive(Clone, Debug)]
#[must_use = "call `tensor()` for the result"]
pub struct Computed(Result<Tensor, Error>);

impl Computed {
    /// The tensor, or the first error.
    pub fn tensor(self) -> Result<Tensor, Error> {
        self.0
    }
}

/// What stands on one side of an operator.
#[derive(Clone, Debug)]
pub enum Term {
    /// A tensor, or the error in its place.
    Tensor(Computed),
    /// A number.
    Number(f32),
}

impl From<&Tensor> for Term {
    fn from(tensor: &Tensor) -> Term {
        Term::Tensor(Computed(Ok(tensor.clone())))
    }
}

impl From<Tensor> for Term {
    fn from(tensor: Tensor) -> Term {
        Term::Tensor(Computed(Ok(tensor)))
    }
}

impl From<Computed> for Term {
    fn from(computed: Computed) -> Term {
        Term::Tensor(computed)
    }
}

impl From<f32> for Term {
    fn from(number: f32) -> Term {
        Term::Number(number)
    }
}

fn left_of(f: Binary, a: Result<Tensor, Error>, b: Term) -> Computed {
    Computed(a.and_then(|a| match b {
        Term::Tensor(Computed(b)) => a.binary(f, &b?),
        Term::Number(b) => a.scalar(f, b),
    }))
}

macro_rules! operators {
    ($($trait:ident $method:ident),*) => {$(
        impl<B: Into<Term>> $trait<B> for &Tensor {
            type Output = Computed;

            fn $method(self, other: B) -> Computed {
                left_of(Binary::$trait, Ok(self.clone()), other.into())
            }
        }

        impl<B: Into<Term>> $trait<B> for Tensor {
            type Output = Computed;

            fn $method(self, other: B) -> Computed {
                left_of(Binary::$trait, Ok(self), other.into())
            }
        }

        impl<B: Into<Term>> $trait<B> for Computed {
            type Output = Computed;

            fn $method(self, other: B) -> Computed {
                left_of(Binary::$trait, self.0, other.into())
            }
        }

        impl $trait<&Tensor> for f32 {
            type Output = Computed;

            fn $method(self, other: &Tensor) -> Computed {
                Computed(other.scalar_first(self, Binary::$trait))
            }
        }

        impl $trait<Tensor> for f32 {
            type Output = Computed;

            fn $method(self, other: Tensor) -> Computed {
                Computed(other.scalar_first(self, Binary::$trait))
            }
        }

        impl $trait<Computed> for f32 {
            type Output = Computed;

            fn $method(self, other: Computed) -> Computed {
                Computed(other.0.and_then(|other| other.scalar_first(self, Binary::$trait)))
            }
        }
    )*};
}

operators!(Add add, Sub sub, Mul mul, Div div);

impl Neg for &Tensor {
    type Output = Computed;

    fn neg(self) -> Computed {
        Computed(self.scalar(Binary::Mul, -1.0))
    }
}

impl Neg for Computed {
    type Output = Computed;

    fn neg(self) -> Computed {
        Computed(self.0.and_then(|tensor| tensor.scalar(Binary::Mul, -1.0)))
    }
}
