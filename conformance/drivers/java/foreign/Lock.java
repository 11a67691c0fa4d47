// The abilities of the Java locks besides Redisson; the calling thread is the owner.
interface Lock {
    /** Takes it for so many seconds, or says at once that somebody else has it. */
    boolean tryLock(long seconds);

    /** Gives it back; false if it was not the caller's. */
    boolean unlock();

    boolean isMine();
}
