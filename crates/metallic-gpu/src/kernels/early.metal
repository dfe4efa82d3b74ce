// What was computed before is there from here on; weights, tables and older rows of the cache may be read before that. Every kernel of
// a family that has this calls it.
METAL_FUNC void wait_for_earlier() {
#ifdef SOFTMETAL_EARLY
    softmetal_wait_for_earlier();
#endif
}
