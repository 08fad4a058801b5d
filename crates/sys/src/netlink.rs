//! Numbers in messages of netlink(7), which are in the order of the machine.

/// The 32 bits at a place, if they are there.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

/// The 16 bits at a place, if they are there.
pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(two.try_into().ok()?))
}
