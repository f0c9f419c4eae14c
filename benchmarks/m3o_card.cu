// The two parts of a step of M³O that a library call on a card does not do well, one thread block per table or problem.
//
//   sinkhorn: the rule of keyless.transport.sinkhorn_of_ones from a cold start, then what a step rule looks at. The
//             kernel matrix stays in registers: thread (ty, tx) of 16 × 16 holds rows ty + 16a, columns tx + 16b.
//   jacobi:   eigenvalues and eigenvectors of symmetric, non-negative matrices, by one-sided Jacobi rotations of the
//             rows in shared memory.
//
// Both take at most 112 rows, and all numbers are doubles.

constexpr int SIDE = 16;             // threads in a row and in a column of the grid
constexpr int TILE = 7;              // rows and columns that one thread holds
constexpr int MOST = SIDE * TILE;    // rows of the largest table
constexpr int THREADS = SIDE * SIDE;
constexpr int WARPS = THREADS / 32;
constexpr int CHECK_EVERY = 10;      // iterations between two looks, as in keyless.transport
constexpr double LARGEST = 1e60;     // scalings are absorbed before they grow beyond this, as in keyless.transport
constexpr int STATISTICS = 5;

constexpr int JACOBI_THREADS = 512;
constexpr int JACOBI_GROUPS = JACOBI_THREADS / SIDE;  // pairs of rows that are rotated at a time
constexpr int MOST_SWEEPS = 40;
constexpr double ANGLE = 1e-15;      // rows closer to a right angle than this are left alone
constexpr unsigned ALL = 0xffffffffu;

typedef double Tile[TILE][TILE];

struct Scalings {
    double u[MOST], v[MOST], fresh[MOST], alpha[MOST], beta[MOST], exact[MOST];
    double part[WARPS][MOST];
};

// Sums over the 16 lanes of a group; the lane ends with the sum of x[index] where index = group_index(tx).
__device__ __forceinline__ double group_sums(double (&x)[8], int tx) {
#pragma unroll
    for (int width = 4, bit = 8; width >= 1; width /= 2, bit /= 2) {
        const bool upper = tx & bit;
#pragma unroll
        for (int q = 0; q < width; q++) {
            const double sent = upper ? x[q] : x[q + width];
            const double kept = upper ? x[q + width] : x[q];
            x[q] = kept + __shfl_xor_sync(ALL, sent, bit);
        }
    }
    return x[0] + __shfl_xor_sync(ALL, x[0], 1);
}

__device__ __forceinline__ int group_index(int tx) { return tx >> 1; }

__device__ __forceinline__ bool sound(double sum) { return sum > 1 / LARGEST && sum / LARGEST < 1; }

// fresh = 1 / (K v); the sum that belongs to this lane is returned.
__device__ __forceinline__ double row_update(const Tile &K, Scalings &s, int n, int tx, int ty) {
    double v[TILE], x[8];
#pragma unroll
    for (int b = 0; b < TILE; b++) v[b] = s.v[tx + SIDE * b];
#pragma unroll
    for (int a = 0; a < TILE; a++) {
        double sum = 0;
#pragma unroll
        for (int b = 0; b < TILE; b++) sum += K[a][b] * v[b];
        x[a] = sum;
    }
    x[7] = 0;
    const double sum = group_sums(x, tx);
    const int row = ty + SIDE * group_index(tx);
    if (row < MOST && !(tx & 1)) s.fresh[row] = row < n ? 1 / sum : 0;
    __syncwarp();
    return row < n ? sum : 1;
}

// Sums of K's columns weighted by `fresh`; thread t < n returns that of column t, all others return one.
__device__ __forceinline__ double column_sums(const Tile &K, Scalings &s, int n, int tx, int ty, int tid) {
    double u[TILE], x[8];
#pragma unroll
    for (int a = 0; a < TILE; a++) u[a] = s.fresh[ty + SIDE * a];
#pragma unroll
    for (int b = 0; b < TILE; b++) {
        double sum = 0;
#pragma unroll
        for (int a = 0; a < TILE; a++) sum += K[a][b] * u[a];
        x[b] = sum;
    }
    x[7] = 0;
    const int upper = ty & 1, warp = tid >> 5;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const double sent = upper ? x[q] : x[q + 4];
        const double kept = upper ? x[q + 4] : x[q];
        const double sum = kept + __shfl_xor_sync(ALL, sent, 16);
        const int b = 4 * upper + q;
        if (b < TILE) s.part[warp][tx + SIDE * b] = sum;
    }
    __syncthreads();
    double sum = 0;
    if (tid < n) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += s.part[w][tid];
    }
    return tid < n ? sum : 1;
}

// One iteration that looks at nothing: u = 1 / (K v), v = 1 / (u K). `fresh` is u until it is committed.
__device__ __forceinline__ void glide(const Tile &K, Scalings &s, int n, int tx, int ty, int tid) {
    row_update(K, s, n, tx, ty);
    const double sum = column_sums(K, s, n, tx, ty, tid);
    if (tid < n) s.v[tid] = 1 / sum;
    __syncthreads();
}

__device__ __forceinline__ void commit_rows(Scalings &s, int tid) {
    if (tid < MOST) s.u[tid] = s.fresh[tid];
    __syncthreads();
}

__device__ __noinline__ double group_max(double x) {
    for (int bit = 8; bit >= 1; bit /= 2) x = fmax(x, __shfl_xor_sync(ALL, x, bit));
    return x;
}

__device__ __noinline__ double group_sum(double x) {
    for (int bit = 8; bit >= 1; bit /= 2) x += __shfl_xor_sync(ALL, x, bit);
    return x;
}

// exact = the optimal row potentials given those of the columns, in the log domain.
__device__ __noinline__ void exact_rows(const double *C, Scalings &s, double eps, int n, int tx, int ty) {
    for (int a = 0; a < TILE; a++) {
        const int row = ty + SIDE * a;
        double largest = -INFINITY;
        for (int b = 0; b < TILE; b++) {
            const int column = tx + SIDE * b;
            if (row < n && column < n)
                largest = fmax(largest, (s.beta[column] + eps * log(s.v[column]) - C[row * n + column]) / eps);
        }
        largest = group_max(largest);
        double sum = 0;
        for (int b = 0; b < TILE; b++) {
            const int column = tx + SIDE * b;
            if (row < n && column < n)
                sum += exp((s.beta[column] + eps * log(s.v[column]) - C[row * n + column]) / eps - largest);
        }
        sum = group_sum(sum);
        if (tx == 0 && row < n) s.exact[row] = -eps * (largest + log(sum));
    }
    __syncthreads();
}

// beta = the optimal column potentials given those of the rows, alpha.
__device__ __noinline__ void exact_columns(const double *C, Scalings &s, double eps, int n, int tid) {
    if (tid < n) {
        double largest = -INFINITY, sum = 0;
        for (int row = 0; row < n; row++) largest = fmax(largest, (s.alpha[row] - C[row * n + tid]) / eps);
        for (int row = 0; row < n; row++) sum += exp((s.alpha[row] - C[row * n + tid]) / eps - largest);
        s.beta[tid] = -eps * (largest + log(sum));
    }
    __syncthreads();
}

__device__ __forceinline__ void build(Tile &K, const double *C, Scalings &s, double eps, int n, int tx, int ty, int tid) {
#pragma unroll
    for (int a = 0; a < TILE; a++) {
#pragma unroll
        for (int b = 0; b < TILE; b++) {
            const int row = ty + SIDE * a, column = tx + SIDE * b;
            const bool inside = row < n && column < n;
            K[a][b] = inside ? exp((s.alpha[row] + s.beta[column] - C[row * n + column]) / eps) : 0;
        }
    }
    if (tid < MOST) s.u[tid] = s.v[tid] = tid < n ? 1 : 0;
    __syncthreads();
}

__device__ __noinline__ double block_sum(double x, Scalings &s, int tid) {
    x = group_sum(x);
    x += __shfl_xor_sync(ALL, x, 16);
    __syncthreads();
    if ((tid & 31) == 0) s.part[0][tid >> 5] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < WARPS; w++) sum += s.part[0][w];
    __syncthreads();
    return sum;
}

__device__ __noinline__ double block_max(double x, Scalings &s, int tid) {
    x = group_max(x);
    x = fmax(x, __shfl_xor_sync(ALL, x, 16));
    __syncthreads();
    if ((tid & 31) == 0) s.part[0][tid >> 5] = x;
    __syncthreads();
    double largest = s.part[0][0];
    for (int w = 1; w < WARPS; w++) largest = fmax(largest, s.part[0][w]);
    __syncthreads();
    return largest;
}

// coupling: in, that of the step before; out, the new one.
// statistics: diffuseness, squared change, largest change, transport cost, entropic cost.
__global__ void __launch_bounds__(THREADS) sinkhorn_kernel(
    const double *cost, const double *epsilon, const double *tolerance, const int *active, double *coupling,
    double *statistics, int *iterations, int n, int max_iter) {
    __shared__ Scalings s;
    const int table = blockIdx.x, tid = threadIdx.x, tx = tid & 15, ty = tid >> 4;
    if (!active[table]) return;
    const double *C = cost + (long long)table * n * n;
    const double eps = epsilon[table], tol = tolerance[table];
    Tile K;

    for (int a = 0; a < TILE; a++) {
        const int row = ty + SIDE * a;
        double smallest = INFINITY;
        for (int b = 0; b < TILE; b++) {
            const int column = tx + SIDE * b;
            if (row < n && column < n) smallest = fmin(smallest, C[row * n + column]);
        }
        smallest = -group_max(-smallest);
        if (tx == 0) s.alpha[row] = row < n ? smallest : 0;
    }
    if (tid < MOST) s.beta[tid] = 0;
    __syncthreads();
    build(K, C, s, eps, n, tx, ty, tid);

    int count = 0;
    const int leap = CHECK_EVERY < max_iter ? CHECK_EVERY : max_iter;
    for (int k = 0; k < leap; k++) glide(K, s, n, tx, ty, tid);
    const double u = tid < n ? s.fresh[tid] : 1, v = tid < n ? s.v[tid] : 1;
    const bool lost = !(u * LARGEST > 1 && v * LARGEST > 1 && u < LARGEST && v < LARGEST);
    if (__syncthreads_or(lost)) {
        if (tid < MOST) s.u[tid] = s.v[tid] = tid < n ? 1 : 0;
        __syncthreads();
    } else {
        count = leap;
        commit_rows(s, tid);
    }

    while (true) {
        const bool look = count < 3 || count % CHECK_EVERY == 0;
        const double row_sum = row_update(K, s, n, tx, ty);
        const bool rows_lost = look && __syncthreads_or(!sound(row_sum));
        if (rows_lost) exact_rows(C, s, eps, n, tx, ty);
        const bool done = count >= max_iter;
        if (count && (done || count % CHECK_EVERY == 0)) {
            double change = 0;
            __syncthreads();
            if (tid < n) {
                double ratio;
                if (rows_lost) {
                    const double bound = log(LARGEST);
                    const double power = (s.alpha[tid] + eps * log(s.u[tid]) - s.exact[tid]) / eps;
                    ratio = exp(fmin(fmax(power, -bound), bound));
                } else {
                    ratio = s.u[tid] / s.fresh[tid];
                }
                change = (ratio - 1) * (ratio - 1);
            }
            const double residual = sqrt(block_sum(change, s, tid) / n);
            if (done || residual <= tol) break;
        }
        bool columns_lost = rows_lost;
        if (!rows_lost) {
            const double sum = column_sums(K, s, n, tx, ty, tid);
            columns_lost = look && __syncthreads_or(!sound(sum));
            if (!columns_lost) {
                if (tid < n) s.v[tid] = 1 / sum;
                commit_rows(s, tid);
            }
        }
        if (columns_lost) {
            __syncthreads();
            if (tid < n) s.alpha[tid] = rows_lost ? s.exact[tid] : s.alpha[tid] + eps * log(s.fresh[tid]);
            __syncthreads();
            exact_columns(C, s, eps, n, tid);
            build(K, C, s, eps, n, tx, ty, tid);
        }
        count++;
        if (count >= 3) {
            const int next = (count + CHECK_EVERY - 1) / CHECK_EVERY * CHECK_EVERY;
            const int until = next < max_iter ? next : max_iter;
            if (count < until) {
                for (; count < until; count++) glide(K, s, n, tx, ty, tid);
                commit_rows(s, tid);
            }
        }
    }

    double *P = coupling + (long long)table * n * n;
    double moved = 0, squared = 0, paid = 0, entropic = 0, diffuse = 0;
#pragma unroll
    for (int a = 0; a < TILE; a++) {
        const int row = ty + SIDE * a;
        double largest = 0;
#pragma unroll
        for (int b = 0; b < TILE; b++) {
            const int column = tx + SIDE * b;
            if (row < n && column < n) {
                const double mass = K[a][b] * s.u[row] * s.v[column];
                const double change = mass - P[row * n + column];
                P[row * n + column] = mass;
                largest = fmax(largest, mass);
                moved = fmax(moved, fabs(change));
                squared += change * change;
                paid += mass * C[row * n + column];
                const double potentials = s.alpha[row] + eps * log(s.u[row]) + s.beta[column] + eps * log(s.v[column]);
                entropic += mass * (potentials - eps);
            }
        }
        largest = group_max(largest);
        if (tx == 0 && row < n) diffuse += fabs(largest - 1);
    }
    diffuse = block_sum(diffuse, s, tid);
    squared = block_sum(squared, s, tid);
    moved = block_max(moved, s, tid);
    paid = block_sum(paid, s, tid);
    entropic = block_sum(entropic, s, tid);
    if (tid == 0) {
        double *out = statistics + (long long)table * STATISTICS;
        out[0] = diffuse / n;
        out[1] = squared / (2 * n);
        out[2] = moved;
        out[3] = paid;
        out[4] = entropic;
        iterations[table] = count;
    }
}

// Squared norms of the rows, one group of 16 lanes per row.
__device__ __forceinline__ void row_norms(const double *G, double *norms, int n, int even, int tx, int group) {
    for (int first = 0; first < even; first += JACOBI_GROUPS) {
        const int row = first + group;
        double sum = 0;
        if (row < n)
            for (int column = tx; column < n; column += SIDE) sum += G[row * n + column] * G[row * n + column];
        sum = group_sum(sum);
        if (tx == 0 && row < even) norms[row] = sum;
    }
    __syncthreads();
}

// gram: n × n; values: n; vectors: n × n, one eigenvector a row; sweeps: how many were needed, or MOST_SWEEPS.
// Eigenvalues up to `threshold` and their vectors need not be exact: together they are not larger.
__global__ void __launch_bounds__(JACOBI_THREADS) jacobi_kernel(
    const double *gram, const double *threshold, const int *active, double *values, double *vectors, int *sweeps,
    int n) {
    extern __shared__ double G[];
    const int even = n + (n & 1);
    double *norms = G + n * n;
    const int problem = blockIdx.x, tid = threadIdx.x, tx = tid & 15, group = tid >> 4;
    if (!active[problem]) return;
    const double *from = gram + (long long)problem * n * n;
    for (int k = tid; k < n * n; k += JACOBI_THREADS) G[k] = from[k];
    __syncthreads();
    const double least = threshold[problem] * threshold[problem];

    int sweep = 0;
    for (; sweep < MOST_SWEEPS; sweep++) {
        row_norms(G, norms, n, even, tx, group);
        // Rows that are small even when taken together hide no eigenvalue above the threshold.
        double small = 0;
        for (int row = 0; row < n; row++) small += norms[row] < least / 4 ? norms[row] : 0;
        const double ignored = small < least ? least / 4 : 0;
        __syncthreads();
        int rotated = 0;
        for (int round = 0; round < even - 1; round++) {
            for (int first = 0; first < even / 2; first += JACOBI_GROUPS) {
                const int pair = first + group;
                int p = pair == 0 ? even - 1 : (round + pair) % (even - 1);
                int q = (round - pair + even - 1) % (even - 1);
                bool work = pair < even / 2 && p < n && q < n;
                double pp = 0, qq = 0;
                if (work) {
                    pp = norms[p];
                    qq = norms[q];
                    work = !(pp < ignored && qq < ignored);
                }
                double x[TILE], y[TILE], pq = 0;
#pragma unroll
                for (int b = 0; b < TILE; b++) {
                    const int column = tx + SIDE * b;
                    const bool inside = work && column < n;
                    x[b] = inside ? G[p * n + column] : 0;
                    y[b] = inside ? G[q * n + column] : 0;
                    pq += x[b] * y[b];
                }
#pragma unroll
                for (int bit = 8; bit >= 1; bit /= 2) pq += __shfl_xor_sync(ALL, pq, bit);
                if (work && fabs(pq) > ANGLE * fmax(pp, qq)) {
                    rotated = 1;
                    const double zeta = (qq - pp) / (2 * pq);
                    const double t = (zeta >= 0 ? 1 : -1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
                    const double c = 1 / sqrt(1 + t * t), sine = c * t;
#pragma unroll
                    for (int b = 0; b < TILE; b++) {
                        const int column = tx + SIDE * b;
                        if (column < n) {
                            G[p * n + column] = c * x[b] - sine * y[b];
                            G[q * n + column] = sine * x[b] + c * y[b];
                        }
                    }
                    if (tx == 0) {
                        norms[p] = fmax(pp - t * pq, 0.0);
                        norms[q] = fmax(qq + t * pq, 0.0);
                    }
                }
            }
            __syncthreads();
        }
        if (!__syncthreads_or(rotated)) break;
    }
    row_norms(G, norms, n, even, tx, group);
    double *to = vectors + (long long)problem * n * n;
    for (int k = tid; k < n * n; k += JACOBI_THREADS) {
        const double norm = sqrt(norms[k / n]);
        to[k] = norm > 0 ? G[k] / norm : 0;
    }
    if (tid < n) values[(long long)problem * n + tid] = sqrt(norms[tid]);
    if (tid == 0) sweeps[problem] = sweep;
}

#ifdef __CUDACC__
extern "C" int sinkhorn(
    const double *cost, const double *epsilon, const double *tolerance, const int *active, double *coupling,
    double *statistics, int *iterations, int tables, int n, int max_iter, cudaStream_t stream) {
    if (n > MOST) return -1;
    sinkhorn_kernel<<<tables, THREADS, 0, stream>>>(
        cost, epsilon, tolerance, active, coupling, statistics, iterations, n, max_iter);
    return (int)cudaGetLastError();
}

extern "C" int jacobi(
    const double *gram, const double *threshold, const int *active, double *values, double *vectors, int *sweeps,
    int problems, int n, cudaStream_t stream) {
    if (n > MOST) return -1;
    const int bytes = (n * n + n + 1) * (int)sizeof(double);
    const cudaError_t set = cudaFuncSetAttribute(jacobi_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (set != cudaSuccess) return (int)set;
    jacobi_kernel<<<problems, JACOBI_THREADS, bytes, stream>>>(gram, threshold, active, values, vectors, sweeps, n);
    return (int)cudaGetLastError();
}
#endif
