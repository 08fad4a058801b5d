//! The two sides of a gateway.

/// A side of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The hosts behind the gateway.
    Lan,
    /// The link.
    Link,
}

impl Side {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::Lan, Self::Link];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Lan => Self::Link,
            Self::Link => Self::Lan,
        }
    }
}
