//! Passwords as they are kept: argon2id (RFC 9106), in the PHC string format.

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use sextant_common::{Error, Result};
use sextant_environment::rng::Rng;

/// Longest password that is looked at, in bytes.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1024;
/// Memory, passes and lanes, as OWASP recommends: 19 MiB, 2, 1. Some 30 ms on one core.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;
/// Hashes from elsewhere may ask for more, but not for all of the machine.
const MEMORY_KIB_MAX: u32 = 256 * 1024;
const PASSES_MAX: u32 = 16;
const SALT_BYTES: usize = 16;

fn argon2() -> Result<Argon2<'static>> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None).map_err(|e| Error::internal(e.to_string()))?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// Of a password, with a salt of its own. Takes some 30 ms: not for a thread that serves.
pub fn hash(password: &[u8], rng: &dyn Rng) -> Result<String> {
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(Error::invalid(format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes")));
    }
    let mut salt = [0; SALT_BYTES];
    salt.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]));
    let failed = |e: argon2::password_hash::Error| Error::internal(format!("password: {e}"));
    let salt = SaltString::encode_b64(&salt).map_err(failed)?;
    Ok(argon2()?.hash_password(password, &salt).map_err(failed)?.to_string())
}

/// Whether it is of this password. As slow as [`hash`].
pub(crate) fn verify(password: &[u8], phc: &str) -> bool {
    let Ok(parsed) = PasswordHash::new(phc) else { return false };
    password.len() <= PASSWORD_BYTES_MAX && Argon2::default().verify_password(password, &parsed).is_ok()
}

/// Whether this is a hash that can be verified, and does not cost too much.
pub(crate) fn check(phc: &str) -> Result<()> {
    let wrong = || Error::invalid("a password's hash is argon2id's, as `sextant user hash` prints it");
    let parsed = PasswordHash::new(phc).map_err(|_| wrong())?;
    let params = Params::try_from(&parsed).map_err(|_| wrong())?;
    let is_argon2id = parsed.algorithm == Algorithm::Argon2id.ident();
    if !is_argon2id || parsed.hash.is_none() || parsed.salt.is_none() || phc.len() > 512 {
        return Err(wrong());
    }
    if params.m_cost() > MEMORY_KIB_MAX || params.t_cost() > PASSES_MAX || params.p_cost() > 16 {
        return Err(Error::invalid("a password's hash asks for too much memory or time"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sextant_environment::rng::SeededRng;

    use super::*;

    #[test]
    fn a_password_is_told_from_others_and_its_hash_from_itself() {
        let rng = SeededRng::new(7);
        let [one, two] = [(); 2].map(|()| hash(b"secret", &rng).unwrap());
        assert_ne!(one, two, "salts differ");
        for phc in [&one, &two] {
            check(phc).unwrap();
            assert!(verify(b"secret", phc) && !verify(b"Secret", phc) && !verify(b"", phc));
            assert!(!phc.contains("secret") && !phc.contains(' '));
        }
    }

    #[test]
    fn other_hashes_are_refused() {
        let good = hash(b"x", &SeededRng::new(1)).unwrap();
        let costly = good.replace("m=19456", "m=9999999");
        let endless = good.replace("t=2", "t=4000000");
        for phc in ["", "secret", "$1$abc", "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ", &costly, &endless] {
            assert!(check(phc).is_err(), "{phc}");
        }
        assert!(hash(b"", &SeededRng::new(1)).is_err());
        assert!(hash(&[b'x'; PASSWORD_BYTES_MAX + 1], &SeededRng::new(1)).is_err());
    }
}
