//! The data path of the coded tunnel, in virtual time, over a network that loses, repeats, delays and damages datagrams.
//!
//! `BENTPIPE_STRESS` times as many random transfers, and packets where a loss is measured; by hand, 20 times. A failure prints the seed, which `BENTPIPE_STRESS_SEED` replays.

mod hostile;
mod loss;
mod marks;
mod sizes;
mod transfers;
mod world;
