/* Encodes the block of the benchmark with ISA-L. Prints GB/s of source bytes and a hash of the result.
   Usage: isal SOURCES ROWS BYTES BATCHES SECONDS */
#include <isa-l/erasure_code.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static unsigned char *row(int bytes) {
    unsigned char *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory)
        exit(1);
    memset(memory, 0, bytes);
    return memory;
}

int main(int count, char **arguments) {
    if (count != 6)
        return 2;
    int sources = atoi(arguments[1]), rows = atoi(arguments[2]), bytes = atoi(arguments[3]);
    int batches = atoi(arguments[4]);
    double seconds = atof(arguments[5]), best = 0;
    unsigned char *data[256], *sums[256];
    unsigned char *factors = malloc(sources * rows), *tables = malloc(32 * sources * rows);
    for (int i = 0; i < sources; i++) {
        data[i] = row(bytes);
        for (int at = 0; at < bytes; at++)
            data[i][at] = i * 131 + at * 17 + (at >> 8) * 7;
    }
    for (int i = 0; i < sources * rows; i++)
        factors[i] = 1 + i * 37 % 255;
    for (int i = 0; i < rows; i++)
        sums[i] = row(bytes);
    ec_init_tables(sources, rows, factors, tables);
    for (int batch = 0; batch < batches; batch++) {
        long runs = 0;
        double begin = now(), end;
        do {
            for (int i = 0; i < 20; i++)
                ec_encode_data(bytes, sources, rows, tables, data, sums);
            runs += 20;
            end = now();
        } while (end - begin < seconds);
        double rate = (double)runs * sources * rows * bytes / (end - begin) / 1e9;
        if (rate > best)
            best = rate;
    }
    uint64_t hash = 0xCBF29CE484222325;
    for (int i = 0; i < rows; i++)
        for (int at = 0; at < bytes; at++)
            hash = (hash ^ sums[i][at]) * 0x100000001B3;
    printf("%f %lu\n", best, hash);
    return 0;
}
