//! Static keys of X25519 (RFC 7748), their text form and their files.
//!
//! The text is base64 (RFC 4648) of the 32 bytes of a key and 4 bytes of a checksum: 48 characters. The checksum
//! differs between private and public keys, so that a typing error is detected, and so is a private key in the place of
//! a public one.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use ring::digest::{Context, SHA256};
use rustix::process::geteuid;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::random::Random;

/// The length of a key in bytes.
pub const KEY_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
const TEXT_BYTES: usize = KEY_BYTES + CHECKSUM_BYTES;
/// 36 bytes are 12 groups of three, so base64 needs no padding.
const TEXT_CHARACTERS: usize = TEXT_BYTES / 3 * 4;
/// A key and the end of its line; a longer file is not a key.
const FILE_BYTES_MAX: u64 = 64;
/// The permissions of group and others.
const SHARED: u32 = 0o077;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const PUBLIC_LABEL: &[u8] = b"bentpipe public key";
const PRIVATE_LABEL: &[u8] = b"bentpipe private key";
/// How to get a key.
const KEYGEN: &str = "bentpipe gateway keygen writes one to a new file";

/// The name of a gateway: what its peers know it by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

/// The secret of a gateway; overwritten when it is dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct PrivateKey([u8; KEY_BYTES]);

/// Why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// It has another length than 48 characters.
    Length,
    /// It has a character that base64 does not have.
    Character,
    /// It is a private key in the place of a public one, or the other way round.
    Kind,
    /// A character was changed.
    Checksum,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a key has 48 characters",
            Self::Character => "a key has letters, digits, + and / only",
            Self::Kind => "a private key and a public key were confused",
            Self::Checksum => "the checksum of the key is wrong: a character differs",
        })
    }
}

impl std::error::Error for KeyError {}

impl PublicKey {
    /// The key with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Reads the text form; white space around it is ignored.
    ///
    /// # Errors
    /// If the text is not a public key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        parse(text, PUBLIC_LABEL, PRIVATE_LABEL).map(|bytes| Self(*bytes))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.0, PUBLIC_LABEL))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Never the key itself.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

impl PrivateKey {
    /// A new key.
    #[must_use]
    pub fn generate(random: &mut dyn Random) -> Self {
        let mut key = Self([0; KEY_BYTES]);
        random.fill(&mut key.0);
        key
    }

    /// The key with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The public key that belongs to it.
    ///
    /// # Panics
    /// Never: the library has this curve.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("X25519");
        curve.set(&self.0);
        PublicKey(curve.pubkey().try_into().expect("32 bytes"))
    }

    /// Reads a key from its file.
    ///
    /// # Errors
    /// `InvalidInput` with the file, what is wrong and the fix: it cannot be read, another user owns it, its group or
    /// others may read, write or execute it, or it holds no private key. No message contains a part of the file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let shown = path.display();
        let refused = |why: &str, fix: &str| {
            let message = format!("{shown}: {why}; to fix it: {fix}");
            io::Error::new(ErrorKind::InvalidInput, message)
        };
        let unread =
            |error: io::Error| refused(&error.to_string(), "the name of a file with a key");
        let file = File::open(path).map_err(unread)?;
        // Of the open file: the name may lead to another one by now.
        let metadata = file.metadata().map_err(unread)?;
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            return Err(refused("it is no file with one private key", KEYGEN));
        }
        let (owner, user) = (metadata.uid(), geteuid().as_raw());
        if owner != 0 && owner != user {
            let why = format!("user {owner} owns this private key, and could read and change it");
            return Err(refused(&why, &format!("chown {user} {shown}")));
        }
        if metadata.mode() & SHARED != 0 {
            let mode = metadata.mode() & 0o777;
            let why = format!("others than its owner may use this private key (mode {mode:03o})");
            return Err(refused(&why, &format!("chmod 600 {shown}")));
        }
        let mut content = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
        file.take(FILE_BYTES_MAX).read_to_string(&mut content).map_err(unread)?;
        match parse(&content, PRIVATE_LABEL, PUBLIC_LABEL) {
            Ok(bytes) => Ok(Self(*bytes)),
            Err(error) => Err(refused(&error.to_string(), KEYGEN)),
        }
    }

    /// Writes the key to a new file that only its owner may read.
    ///
    /// # Errors
    /// If the file exists or cannot be written.
    pub fn write_new(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut line = Zeroizing::new(text(&self.0, PRIVATE_LABEL));
        line.push('\n');
        file.write_all(line.as_bytes())?;
        file.sync_all()
    }
}

/// Generates a private key, writes it to the new file `path` and returns its public key.
///
/// # Errors
/// If the file exists or cannot be written.
pub fn keygen(path: &Path, random: &mut dyn Random) -> io::Result<PublicKey> {
    let key = PrivateKey::generate(random);
    key.write_new(path)?;
    Ok(key.public())
}

fn checksum(key: &[u8], label: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut context = Context::new(&SHA256);
    context.update(label);
    context.update(key);
    let digest = context.finish();
    std::array::from_fn(|index| digest.as_ref()[index])
}

fn text(key: &[u8; KEY_BYTES], label: &[u8]) -> String {
    let mut bytes = Zeroizing::new([0; TEXT_BYTES]);
    bytes[..KEY_BYTES].copy_from_slice(key);
    bytes[KEY_BYTES..].copy_from_slice(&checksum(key, label));
    // Room for the end of a line, so that the text is never moved, which would leave a copy of it.
    let mut text = String::with_capacity(TEXT_CHARACTERS + 1);
    for group in bytes.chunks_exact(3) {
        let word = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for shift in [18, 12, 6, 0] {
            text.push(char::from(ALPHABET[(word >> shift) as usize & 63]));
        }
    }
    text
}

fn parse(
    text: &str,
    label: &[u8],
    other_label: &[u8],
) -> Result<Zeroizing<[u8; KEY_BYTES]>, KeyError> {
    let text = text.trim().as_bytes();
    if text.len() != TEXT_CHARACTERS {
        return Err(KeyError::Length);
    }
    let mut bytes = Zeroizing::new([0; TEXT_BYTES]);
    for (group, decoded) in text.chunks_exact(4).zip(bytes.chunks_exact_mut(3)) {
        let mut word = 0;
        for character in group {
            let value = ALPHABET.iter().position(|letter| letter == character);
            word = word << 6 | value.ok_or(KeyError::Character)? as u32;
        }
        decoded.copy_from_slice(&word.to_be_bytes()[1..]);
    }
    let (key, found) = bytes.split_at(KEY_BYTES);
    if found == checksum(key, other_label) {
        return Err(KeyError::Kind);
    }
    if found != checksum(key, label) {
        return Err(KeyError::Checksum);
    }
    let mut parsed = Zeroizing::new([0; KEY_BYTES]);
    parsed.copy_from_slice(key);
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tunnel::random::OsRandom;

    /// Alice's keys of RFC 7748, section 6.1.
    const PRIVATE: [u8; 32] = [
        0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66,
        0x45, 0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9,
        0x2c, 0x2a,
    ];
    const PUBLIC: [u8; 32] = [
        0x85, 0x20, 0xf0, 0x09, 0x89, 0x30, 0xa7, 0x54, 0x74, 0x8b, 0x7d, 0xdc, 0xb4, 0x3e, 0xf7,
        0x5a, 0x0d, 0xbf, 0x3a, 0x0d, 0x26, 0x38, 0x1a, 0xf4, 0xeb, 0xa4, 0xa9, 0x8e, 0xaa, 0x9b,
        0x4e, 0x6a,
    ];

    #[test]
    fn a_private_key_has_the_public_key_of_rfc_7748() {
        assert_eq!(PrivateKey::from_bytes(PRIVATE).public().as_bytes(), &PUBLIC);
    }

    /// The first 32 bytes as coreutils' base64 writes them: 42 whole characters.
    #[test]
    fn the_text_of_a_key_is_base64() {
        let written = PublicKey::from_bytes(PUBLIC).to_string();
        assert_eq!(written.len(), 48);
        assert_eq!(&written[..42], "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTm");
        assert_eq!(PublicKey::parse(&format!(" {written}\n")), Ok(PublicKey::from_bytes(PUBLIC)));
    }

    /// Given a key, when any one character is changed, then it is refused: the chance of a collision is 2^-32 for each.
    #[test]
    fn a_changed_character_is_detected() {
        let written = PublicKey::from_bytes(PUBLIC).to_string();
        for index in 0..written.len() {
            for other in ['A', '/', '7'] {
                let mut changed = written.clone();
                changed.replace_range(index..=index, &other.to_string());
                if changed != written {
                    assert_eq!(PublicKey::parse(&changed), Err(KeyError::Checksum), "{changed}");
                }
            }
        }
        assert_eq!(PublicKey::parse(&written[1..]), Err(KeyError::Length));
        assert_eq!(PublicKey::parse(&written.replace('h', "-")), Err(KeyError::Character));
    }

    #[test]
    fn a_private_key_is_no_public_key() {
        let written = text(&PRIVATE, PRIVATE_LABEL);
        assert_eq!(PublicKey::parse(&written), Err(KeyError::Kind));
        assert_eq!(format!("{:?}", PrivateKey::from_bytes(PRIVATE)), "PrivateKey(..)");
    }

    /// Given a new key in a file, then only its owner may read it, it is read again, and it is not overwritten. With any
    /// permission of group or others, it is refused.
    #[test]
    fn the_file_of_a_private_key_is_its_owners() {
        let folder = std::env::temp_dir().join(format!("bp-keygen-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("key");
        let public = keygen(&path, &mut OsRandom::new()).expect("a new file");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        assert_eq!(PrivateKey::read(&path).expect("a key").public(), public);
        let again = keygen(&path, &mut OsRandom::new()).expect_err("it exists");
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);

        for mode in [0o640, 0o604, 0o610, 0o601, 0o620, 0o602] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("permissions");
            let error = PrivateKey::read(&path).expect_err("others may use it");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("permissions");
            assert_eq!(PrivateKey::read(&path).expect("a key").public(), public);
        }
        fs::remove_dir_all(&folder).expect("the folder is removed");
    }

    /// A public key, a folder, a long file and an empty one are not private keys.
    #[test]
    fn a_file_without_a_private_key_is_refused() {
        let folder = std::env::temp_dir().join(format!("bp-no-key-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("key");
        let long = "A".repeat(65);
        for content in [&PublicKey::from_bytes(PUBLIC).to_string(), &long, ""] {
            fs::write(&path, content).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
            let error = PrivateKey::read(&path).expect_err("no key");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(content.is_empty() || !error.to_string().contains(content));
        }
        assert!(PrivateKey::read(&folder).is_err());
        fs::remove_dir_all(&folder).expect("the folder is removed");
    }
}
